//! Pauses between starts that fail, so that the service manager may try for ever.
//!
//! A file in the directory that the service manager gives the service (`RuntimeDirectory=`) counts the starts
//! in a row after which the gateway was never ready. systemd grows the pause by itself from version 254 on
//! (`RestartSteps=`). Debian 12 has version 252.
//!
//! Invariants: a gateway that was ready starts again at once. So whoever can make it crash cannot make it
//! pause. A changed configuration is tried at once. The kill switch of a site is kept up during a
//! pause. Without such a directory there is neither file nor pause.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, interval};

use super::{Asked, Signals, notify, runtime, take_lock};
use ropewalk_config as config;
use ropewalk_host::files::Lock;
use ropewalk_host::kill_switch::{self, KillSwitch};

/// Failed starts in a row before the first pause. More: short troubles are over sooner, more work for nothing.
const FREE: u32 = 3;
/// Longest pause. Longer: less work and shorter logs, a gateway is back later when the trouble is over.
const PAUSE_MAX: Duration = Duration::from_mins(1);
/// Failed starts that are so long ago do not count. Longer: a start by hand may meet a pause.
const FORGOTTEN: Duration = Duration::from_mins(10);
/// How often a pause looks at the configuration and the kill switch. Longer: less work, later.
const LOOK: Duration = Duration::from_secs(1);
/// What the service manager grants the start that follows a pause.
const START: Duration = Duration::from_secs(90);

/// Waits until it is this gateway's turn to start: false when it was asked to stop meanwhile. `path` is its
/// configuration, which may be wrong or missing.
///
/// # Errors
/// Signals cannot be caught.
pub fn wait(role: &str, path: &Path) -> anyhow::Result<bool> {
    let Some(starts) = Starts::of(path) else {
        return Ok(true);
    };
    let failed = starts.begin();
    let time = pause(failed);
    if time.is_zero() {
        return Ok(true);
    }
    let _ = writeln!(
        io::stderr(),
        "ropewalk: {failed} starts in a row have failed; the next one is in {} s, or when {} changes",
        time.as_secs(),
        path.display()
    );
    let mut kept = (role == "site").then(|| Kept::new(path)).flatten();
    runtime()?.block_on(async {
        let mut signals = Signals::new()?;
        // Whoever hears of the pause may end it at once.
        notify::extend_start(time + START);
        let (end, mut look) = (Instant::now() + time, interval(LOOK));
        loop {
            tokio::select! {
                asked = signals.next() => {
                    if asked == Asked::Stop {
                        starts.forget();
                    }
                    return Ok(asked == Asked::Reload);
                }
                now = look.tick() => {
                    if let Some(kept) = &mut kept {
                        kept.keep();
                    }
                    if now >= end || starts.are_older_than_configuration() {
                        return Ok(true);
                    }
                }
            }
        }
    })
}

/// The gateway with this configuration is ready.
pub(super) fn ready(path: &Path) {
    if let Some(starts) = Starts::of(path) {
        starts.forget();
    }
    notify::send(notify::Ready);
}

/// The pause after so many failed starts in a row.
fn pause(failed: u32) -> Duration {
    let Some(doublings) = failed.checked_sub(FREE) else {
        return Duration::ZERO;
    };
    let seconds = 1_u64.checked_shl(doublings).unwrap_or(u64::MAX);
    Duration::from_secs(seconds).min(PAUSE_MAX)
}

/// The file that counts the starts of a gateway.
struct Starts {
    file: PathBuf,
    configuration: PathBuf,
}

impl Starts {
    fn of(configuration: &Path) -> Option<Self> {
        let directories = std::env::var_os("RUNTIME_DIRECTORY")?;
        let directory = std::env::split_paths(&directories).next()?;
        Some(Self::new(&directory, configuration))
    }

    fn new(directory: &Path, configuration: &Path) -> Self {
        let name = configuration.to_string_lossy().replace('/', "-");
        Self {
            file: directory.join(format!("starts{name}")),
            configuration: configuration.to_owned(),
        }
    }

    /// Counts this start as failed until the gateway is ready; how many before it were.
    fn begin(&self) -> u32 {
        let old = modified(&self.file).is_none_or(|then| {
            let age = SystemTime::now().duration_since(then);
            // A clock that was set back says nothing.
            age.is_ok_and(|age| age > FORGOTTEN)
        });
        let failed: u32 = if old || self.are_older_than_configuration() {
            0
        } else {
            let text = fs::read_to_string(&self.file).unwrap_or_default();
            text.trim().parse().unwrap_or(0)
        };
        // The directory is in memory, and losing the count costs a pause only.
        let _ = fs::write(&self.file, format!("{}\n", failed.saturating_add(1)));
        failed
    }

    fn are_older_than_configuration(&self) -> bool {
        let times = modified(&self.file).zip(modified(&self.configuration));
        times.is_some_and(|(counted, written)| written > counted)
    }

    fn forget(&self) {
        let _ = fs::remove_file(&self.file);
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

/// The kill switch of a site that pauses. `ropewalk down` finds the process by the lock.
struct Kept {
    switch: KillSwitch,
    told: bool,
    _lock: Lock,
}

impl Kept {
    /// As it was set last; `None` if it was not, or if the configuration has it off now.
    fn new(path: &Path) -> Option<Self> {
        let (state_dir, on) = state_of(path)?;
        let lock = take_lock(&state_dir, "site").ok()?;
        let file = kill_switch::path(&state_dir);
        let plan = kill_switch::read(&file).ok().flatten().filter(|_| on)?;
        let switch = KillSwitch::of(&file, plan);
        Some(Self {
            switch,
            told: false,
            _lock: lock,
        })
    }

    fn keep(&mut self) {
        if let Err(error) = self.switch.keep()
            && !std::mem::replace(&mut self.told, true)
        {
            let _ = writeln!(
                io::stderr(),
                "ropewalk: the kill switch cannot be kept: {error:#}"
            );
        }
    }
}

/// The state directory of the site with this configuration, and whether its kill switch is on. A
/// configuration that is wrong is no reason to open the switch. `None` where it does not say which
/// directory: another site may have the usual one, and has to start.
fn state_of(path: &Path) -> Option<(PathBuf, bool)> {
    match config::load_site(path) {
        Ok(site) => Some((site.common.state_dir, site.kill_switch)),
        Err(_) if path == Path::new(config::SITE_CONFIG) => Some((config::STATE_DIR.into(), true)),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_site_with_a_wrong_configuration_does_not_take_the_directory_of_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("site.toml");
        fs::write(&path, "wrong").unwrap();
        assert_eq!(state_of(&path), None);
        if fs::metadata(config::SITE_CONFIG).is_err() {
            let usual = Some((config::STATE_DIR.into(), true));
            assert_eq!(state_of(Path::new(config::SITE_CONFIG)), usual);
        }
    }

    #[test]
    fn pauses_grow_to_a_minute_and_no_further() {
        let seconds: Vec<_> = (0..12).map(|failed| pause(failed).as_secs()).collect();
        assert_eq!(seconds, [0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(pause(u32::MAX), PAUSE_MAX);
    }

    #[test]
    fn starts_count_until_one_is_ready_or_the_configuration_changes() {
        let directory = tempfile::tempdir().unwrap();
        let configuration = directory.path().join("site.toml");
        fs::write(&configuration, "").unwrap();
        let starts = Starts::new(directory.path(), &configuration);
        let other = Starts::new(directory.path(), &directory.path().join("van/site.toml"));
        let count = |times: u32| (0..times).map(|_| starts.begin()).collect::<Vec<_>>();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(count(3), [0, 1, 2]);
        assert_eq!(other.begin(), 0, "another gateway");
        starts.forget();
        assert_eq!(count(2), [0, 1], "it was ready");
        std::thread::sleep(Duration::from_millis(20));
        fs::write(&configuration, "name = \"boat\"").unwrap();
        assert_eq!(starts.begin(), 0, "somebody has mended it");
        fs::remove_file(&configuration).unwrap();
        assert_eq!(count(2), [1, 2], "a missing one is not new");
        let long_ago = SystemTime::now() - FORGOTTEN - Duration::from_secs(1);
        let file = fs::File::options().write(true).open(&starts.file).unwrap();
        file.set_modified(long_ago).unwrap();
        assert_eq!(starts.begin(), 0, "long ago");
        fs::write(&starts.file, "\0\0").unwrap();
        assert_eq!(count(2), [0, 1], "damaged");
    }
}
