//! Files that survive a crash: written whole or not at all, private where they hold secrets,
//! locked where two programs may write.
//!
//! What root makes belongs to whom the directory belongs to: the gateways run as a user of their own, and
//! read and replace what commands of root write for them.
//!
//! Invariant: a reader sees the former or the new contents, never a part, also after a power cut and on a
//! full disk. Source: rename(2) and fsync(2).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown, lchown};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, OFlags, flock};
use zeroize::Zeroizing;

/// Mode of files that hold secrets.
pub const SECRET: u32 = 0o600;
/// Mode of files everyone may read.
pub const PUBLIC: u32 = 0o644;
/// Mode of configurations: the gateway reads them through its group, and only root writes them.
pub const CONFIGURATION: u32 = 0o640;
/// The user of the gateways, where the package has made one.
pub const USER: &str = "ropewalk";
/// `O_NOFOLLOW`, as the standard library takes it.
const NO_FOLLOW: i32 = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
/// Mode of directories for state.
const DIRECTORY: u32 = 0o755;
/// Mode of directories for secrets.
const PRIVATE: u32 = 0o700;

/// Writes `contents` to `path` with `mode`: a temporary file beside it is flushed to the disk,
/// then takes the name. With `replace` false an existing file is an error of kind
/// [`io::ErrorKind::AlreadyExists`]. Temporary files that a crash has left are removed.
///
/// # Errors
/// What the file system says.
pub fn write_atomically(path: &Path, contents: &[u8], mode: u32, replace: bool) -> io::Result<()> {
    let directory = parent(path);
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let prefix = format!(".{}.", name.to_string_lossy());
    remove_left_over(directory, &prefix);
    let temporary = directory.join(format!("{prefix}{}", suffix()));
    let result = write_new(&temporary, contents, mode).and_then(|()| {
        if replace {
            fs::rename(&temporary, path)
        } else {
            // A hard link, unlike a rename, never takes the place of an existing file.
            fs::hard_link(&temporary, path).and_then(|()| fs::remove_file(&temporary))
        }
    });
    if result.is_err() {
        let _ = fs::remove_file(&temporary);
        return result;
    }
    sync_directory(directory)
}

/// Gives a file another name, which it keeps after a power cut. A file of that name is replaced.
///
/// # Errors
/// What the file system says.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_directory(parent(to))
}

/// Removes a file, which stays removed after a power cut; false when there was none.
///
/// # Errors
/// What the file system says.
pub fn remove(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => sync_directory(parent(path)).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// What a temporary file of this process is called after its prefix: BOOT.PROCESS, or PROCESS where the kernel does
/// not tell its boots apart.
fn suffix() -> String {
    let process = std::process::id();
    boot().map_or_else(|| process.to_string(), |boot| format!("{boot}.{process}"))
}

/// The first 8 digits of the random name that the kernel gives itself at each start. Source: random(4), `boot_id`.
fn boot() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let first = id.get(..8)?;
    let digits = first.bytes().all(|digit| digit.is_ascii_hexdigit());
    digits.then(|| first.to_owned())
}

/// Removes temporary files whose process has ended before they got their name.
fn remove_left_over(directory: &Path, prefix: &str) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    let now = boot();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let suffix = name.to_str().and_then(|name| name.strip_prefix(prefix));
        if suffix.is_some_and(|suffix| is_left_over(suffix, now.as_deref())) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether the process that made a temporary file with this [`suffix`] has ended. `now` is this [`boot`].
fn is_left_over(suffix: &str, now: Option<&str>) -> bool {
    let (boot, process) = match suffix.split_once('.') {
        Some((boot, process)) => (Some(boot), process),
        // Of an earlier version, too.
        None => (None, suffix),
    };
    let Ok(id) = process.parse::<u32>() else {
        return false;
    };
    // After a start of the machine another process may have the number.
    if let (Some(boot), Some(now)) = (boot, now)
        && boot.len() == now.len()
        && boot != now
    {
        return boot.bytes().all(|digit| digit.is_ascii_hexdigit());
    }
    let processes = Path::new("/proc");
    processes.join("self").exists() && !processes.join(id.to_string()).exists()
}

fn write_new(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    let _ = fs::remove_file(path);
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(mode).open(path)?;
    // The umask may have taken bits away.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    // Before there is anything in it.
    hand_over(&file, parent(path))?;
    file.write_all(contents)?;
    file.sync_all()
}

/// Gives a file that root made to the owner of `directory`.
fn hand_over(file: &File, directory: &Path) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let owner = fs::metadata(directory)?;
    let own = file.metadata()?;
    if (own.uid(), own.gid()) == (owner.uid(), owner.gid()) {
        return Ok(());
    }
    fchown(file, Some(owner.uid()), Some(owner.gid()))
}

/// Creates the directory of `path` and those above it.
///
/// # Errors
/// What the file system says, with the directory's name.
pub fn create_parent(path: &Path) -> anyhow::Result<()> {
    create_directory(parent(path))
}

/// Creates a directory and those above it.
///
/// # Errors
/// What the file system says, with the directory's name.
pub fn create_directory(path: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let missing: Vec<&Path> = path
        .ancestors()
        .take_while(|path| !path.as_os_str().is_empty() && !path.exists())
        .collect();
    let mut builder = fs::DirBuilder::new();
    if path.is_dir() {
        return Ok(());
    }
    let created = builder.recursive(true).mode(DIRECTORY).create(path);
    created
        .and_then(|()| missing.iter().rev().try_for_each(|made| adopt(made)))
        .with_context(|| format!("cannot create the directory {}", path.display()))?;
    // So that files in it are found again after a power cut. Those above it are older as a rule.
    let _ = sync_directory(parent(path));
    Ok(())
}

/// Creates a directory for secrets, and those above it. What root makes in a directory of the gateways' group belongs
/// to [`USER`], who writes there. Nobody else can look in. A directory that exists stays as it is.
///
/// # Errors
/// What the file system says, with the directory's name.
pub fn create_private(path: &Path) -> anyhow::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    create_directory(path)?;
    let keep = || -> io::Result<()> {
        fs::set_permissions(path, fs::Permissions::from_mode(PRIVATE))?;
        if !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let group = fs::metadata(path)?.gid();
        match uzers::get_user_by_name(USER) {
            Some(user) if user.primary_group_id() == group => {
                lchown(path, Some(user.uid()), Some(group))
            }
            _ => Ok(()),
        }
    };
    keep().with_context(|| format!("cannot close the directory {} to others", path.display()))
}

/// Gives a directory that root made to the owner of the one that it is in.
fn adopt(made: &Path) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let owner = fs::metadata(parent(made))?;
    // Whoever owns the directory above may have put a link here meanwhile.
    lchown(made, Some(owner.uid()), Some(owner.gid()))
}

/// Opens something for reading. A pipe without a writer would keep the program waiting.
fn open_now(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(flags.bits().cast_signed());
    options.open(path)
}

/// Reads a file of a gateway's state that holds no secret; `None` when there is none. An empty one was cut
/// off: whoever writes state writes more.
///
/// # Errors
/// The file is no file, is empty or too large, others may write it, or it cannot be read.
pub fn read_state(path: &Path, bytes_max: u64) -> anyhow::Result<Option<String>> {
    let read = read_state_and_owner(path, bytes_max)?;
    Ok(read.map(|(text, _)| text))
}

/// [`read_state`] with the user whom the file that was read belongs to.
///
/// # Errors
/// As [`read_state`].
pub fn read_state_and_owner(path: &Path, bytes_max: u64) -> anyhow::Result<Option<(String, u32)>> {
    let cannot = || format!("cannot read {}", path.display());
    let mut file = match open_now(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(cannot),
    };
    let metadata = file.metadata().with_context(cannot)?;
    let (name, mode) = (path.display(), metadata.permissions().mode() & 0o7777);
    if !metadata.is_file() {
        bail!("{name} should be a file, but is none; move it away");
    }
    if mode & 0o002 != 0 {
        bail!(
            "anybody may write {name} (mode {mode:04o}): look at what it says, then run `chmod 600 {name}`"
        );
    }
    if metadata.len() > bytes_max {
        bail!("{name} has more than {bytes_max} bytes: it was not written by ropewalk");
    }
    let mut text = String::new();
    file.read_to_string(&mut text).with_context(cannot)?;
    // Some file systems show bytes that did not reach the disk as zeros.
    if text.chars().all(|c| c.is_whitespace() || c == '\0') {
        bail!(
            "{name} is empty, as after a power cut or on a full disk: put a copy of it back, or remove it if \
             nothing was in it"
        );
    }
    Ok(Some((text, metadata.uid())))
}

/// Reads a file that holds a secret; one that others may read, or that belongs to somebody else, is refused.
/// What is checked is the open file, which nobody can exchange meanwhile. Links are followed, as
/// programs that hand out secrets use them: the file that they lead to is checked. Errors call the secret `what`, such as
/// "a private key".
///
/// # Errors
/// The file is missing, is no file, belongs to another user, is readable by others or too large.
pub fn read_secret(path: &Path, what: &str) -> anyhow::Result<Zeroizing<String>> {
    let cannot_read = || format!("cannot read {}", path.display());
    let own = rustix::process::geteuid().as_raw();
    let file = open_now(path).map_err(|error| {
        let denied = error.kind() == io::ErrorKind::PermissionDenied;
        let error = anyhow::Error::new(error).context(cannot_read());
        if denied {
            error.context(not_readable(path, own, &name_of(own)))
        } else {
            error
        }
    })?;
    let metadata = file.metadata().with_context(cannot_read)?;
    if !metadata.is_file() {
        bail!(
            "{} should be a file that holds {what}, but is no file; move it away",
            path.display()
        );
    }
    let owner = metadata.uid();
    // Root reads what belongs to the gateway's user, too, who may have another name and own the directory.
    let of_directory = || fs::metadata(parent(path)).is_ok_and(|above| above.uid() == owner);
    let gateways = || uzers::get_user_by_name(USER);
    let of_gateways = || gateways().is_some_and(|user| user.uid() == owner);
    if owner != own && owner != 0 && !(own == 0 && (of_gateways() || of_directory())) {
        // Whom the gateway runs as, as far as this program knows.
        let user = if own == 0 && gateways().is_some() {
            USER.to_owned()
        } else {
            name_of(own)
        };
        let (path, owner) = (path.display(), name_of(owner));
        if !may_own_secrets(own, &user) {
            bail!(
                "{path} holds {what} but belongs to user {owner}, and user {user} runs this; {AS_ROOT}"
            );
        }
        bail!(
            "{path} holds {what} but belongs to user {owner}, who can read and exchange it; run \
             `chown {user}: {path}`, and replace the secret if {owner} should not have had it"
        );
    }
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        bail!(
            "{path} holds {what} but its mode {mode:04o} lets others read it; \
             run `chmod 600 {path}`, and replace the secret if others had access",
            path = path.display()
        );
    }
    // With room for all, so that no part of it stays in memory that is given back.
    let mut text = Zeroizing::new(String::with_capacity(SECRET_BYTES_MAX + 1));
    let mut bounded = file.take(SECRET_BYTES_MAX as u64 + 1);
    bounded.read_to_string(&mut text).map_err(|error| {
        let kind = error.kind();
        if kind == io::ErrorKind::InvalidData {
            let why = format!(
                "{} should hold {what}, but is no text; put the right file in its place",
                path.display()
            );
            io::Error::new(kind, why).into()
        } else {
            anyhow::Error::new(error).context(cannot_read())
        }
    })?;
    if text.len() > SECRET_BYTES_MAX {
        bail!("{} is too large to hold {what}", path.display());
    }
    Ok(text)
}

/// What to do where a user has no rights.
pub const AS_ROOT: &str = "run it as root (sudo)";

/// Whether an error comes from a lack of rights.
#[must_use]
pub fn is_denied(error: &anyhow::Error) -> bool {
    let mut causes = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|cause| cause.kind() == io::ErrorKind::PermissionDenied)
}

/// Whether a secret of a gateway may be given to whoever runs this. Anybody may run `ropewalk doctor`.
fn may_own_secrets(own: u32, user: &str) -> bool {
    own == 0 || user == USER
}

/// Why `user`, who has the number `own`, cannot open a secret, and what to do.
fn not_readable(path: &Path, own: u32, user: &str) -> String {
    let path = path.display();
    let found = format!("user {user} runs this, and may not read {path}");
    if may_own_secrets(own, user) {
        format!("{found}; run `chown {user}: {path}`, and let {user} enter its directory")
    } else {
        format!("{found}; {AS_ROOT}")
    }
}

/// Whether there is such a process.
fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// The name of a user, or its number when it has none.
fn name_of(user: u32) -> String {
    let name = uzers::get_user_by_uid(user).map(|user| user.name().to_string_lossy().into_owned());
    name.unwrap_or_else(|| user.to_string())
}

/// Largest secret file that is read, bytes.
const SECRET_BYTES_MAX: usize = 4_096;

/// How long a lock is waited for whose owner has ended: its helpers end some milliseconds later. Longer: surer on a busy
/// machine, what hangs is told later.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// How long a lock is waited for that another program has: whoever edits a list needs it for milliseconds. Longer: surer
/// on a slow disk, a hub lets nobody in while a program hangs.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(10);
/// Time between two tries.
const LOCK_INTERVAL: Duration = Duration::from_millis(10);

/// An exclusive lock on a file, held until dropped.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl Lock {
    /// Takes the lock and writes this process's number into the file. Waits only for helpers of a process that has
    /// ended, for 2 s at most.
    ///
    /// # Errors
    /// Another process has it; the message names its number and ends with `remedy`.
    pub fn take(path: &Path, what: &str, remedy: &str) -> anyhow::Result<Self> {
        create_parent(path)?;
        let lock = Self::open(path)?;
        let begun = Instant::now();
        loop {
            match flock(&lock.file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::WOULDBLOCK) => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot lock {}", path.display()));
                }
            }
            let owner = fs::read_to_string(path).unwrap_or_default();
            let owner = owner.trim();
            let has_ended = owner.parse::<u32>().is_ok_and(|pid| !is_alive(pid));
            if !has_ended || begun.elapsed() > LOCK_PATIENCE {
                bail!(
                    "{what} runs already as process {owner} ({} is locked); {remedy}",
                    path.display()
                );
            }
            std::thread::sleep(LOCK_INTERVAL);
        }
        lock.file.set_len(0)?;
        // A full disk must not keep a gateway from starting: the number is only for messages.
        let _ = writeln!(&lock.file, "{}", std::process::id());
        Ok(lock)
    }

    /// Waits for the lock, for 10 s at most.
    ///
    /// # Errors
    /// The file cannot be created, or another program keeps the lock.
    pub fn wait(path: &Path) -> anyhow::Result<Self> {
        Self::wait_for(path, LOCK_WAIT_MAX)
    }

    fn wait_for(path: &Path, most: Duration) -> anyhow::Result<Self> {
        create_parent(path)?;
        let lock = Self::open(path)?;
        let begun = Instant::now();
        loop {
            match flock(&lock.file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(lock),
                Err(rustix::io::Errno::WOULDBLOCK) if begun.elapsed() < most => {
                    std::thread::sleep(LOCK_INTERVAL);
                }
                Err(rustix::io::Errno::WOULDBLOCK) => bail!(
                    "another program has kept {} locked for {} s; end that program, or try again",
                    path.display(),
                    most.as_secs()
                ),
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot lock {}", path.display()));
                }
            }
        }
    }

    /// Whether another process holds the lock at `path`; false also where that is [not known](Self::look).
    #[must_use]
    pub fn is_held(path: &Path) -> bool {
        Self::look(path).unwrap_or(false)
    }

    /// Whether another process holds the lock at `path`.
    ///
    /// # Errors
    /// It is not known: the file cannot be opened, as by a user without rights.
    pub fn look(path: &Path) -> io::Result<bool> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        let locked = flock(&file, FlockOperation::NonBlockingLockShared);
        Ok(locked == Err(rustix::io::Errno::WOULDBLOCK))
    }

    /// Whether the process of this number holds the lock at `path`. The kernel says so, and not the file, which is
    /// written by the user of a gateway.
    #[must_use]
    pub fn is_held_by(path: &Path, process: u32) -> bool {
        let Ok(inode) = fs::metadata(path).map(|meta| meta.ino()) else {
            return false;
        };
        // Such as `1: FLOCK  ADVISORY  WRITE 1234 fe:01:5678 0 EOF`.
        let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
        locks.lines().any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let is_exclusive = fields.next() == Some("FLOCK") && fields.nth(1) == Some("WRITE");
            let holder = fields.next().and_then(|text| text.parse::<u32>().ok());
            let of = fields.next().and_then(|place| place.rsplit(':').next());
            let of = of.and_then(|text| text.parse::<u64>().ok());
            is_exclusive && holder == Some(process) && of == Some(inode)
        })
    }

    fn open(path: &Path) -> anyhow::Result<Self> {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            // The directory may be another user's, and root empties what the name leads to.
            .custom_flags(NO_FOLLOW)
            .mode(SECRET);
        let opened = options.open(path);
        let file = opened.with_context(|| format!("cannot open the lock {}", path.display()))?;
        // Whoever can open the file can keep the lock. Earlier versions let everybody read it.
        file.set_permissions(fs::Permissions::from_mode(SECRET))
            .with_context(|| format!("cannot close the lock {} to others", path.display()))?;
        hand_over(&file, parent(path))
            .with_context(|| format!("cannot hand the lock {} over", path.display()))?;
        Ok(Self { file })
    }
}

fn parent(path: &Path) -> &Path {
    let parent = path.parent().unwrap_or_else(|| Path::new("."));
    if parent.as_os_str().is_empty() {
        Path::new(".")
    } else {
        parent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn what_root_makes_belongs_to_the_owner_of_the_directory() {
        const USER: u32 = 54_321;
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        lchown(directory.path(), Some(USER), Some(USER)).unwrap();
        let owner = |name: &str| {
            let found = fs::metadata(directory.path().join(name)).unwrap();
            (found.uid(), found.gid())
        };
        let key = directory.path().join("a/b/site.key");
        create_parent(&key).unwrap();
        write_atomically(&key, b"secret", SECRET, false).unwrap();
        write_atomically(&key, b"other", SECRET, true).unwrap();
        drop(Lock::wait(&directory.path().join("sites.lock")).unwrap());
        for name in ["a", "a/b", "a/b/site.key", "sites.lock"] {
            assert_eq!(owner(name), (USER, USER), "{name}");
        }
        assert_eq!(mode(&key), SECRET);

        // The owner of the directory could have put the link there.
        let precious = tempfile::NamedTempFile::new().unwrap();
        fs::write(precious.path(), "precious").unwrap();
        let lock = directory.path().join("hub.lock");
        std::os::unix::fs::symlink(precious.path(), &lock).unwrap();
        Lock::take(&lock, "a hub", "").unwrap_err();
        assert_eq!(fs::read_to_string(precious.path()).unwrap(), "precious");
        assert_eq!(fs::metadata(precious.path()).unwrap().uid(), 0);
    }

    #[test]
    fn secrets_are_written_private_and_not_over_existing_ones() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("k");
        write_atomically(&path, b"one", SECRET, false).unwrap();
        assert_eq!(mode(&path), 0o600);
        let again = write_atomically(&path, b"two", SECRET, false).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(*read_secret(&path, KEY).unwrap(), "one");
        write_atomically(&path, b"two", SECRET, true).unwrap();
        assert_eq!(*read_secret(&path, KEY).unwrap(), "two");
        assert_eq!(
            fs::read_dir(directory.path()).unwrap().count(),
            1,
            "temporary files remain"
        );
    }

    /// What a file may be cut to, and what it may be opened to.
    #[test]
    fn state_that_was_cut_off_or_that_anybody_may_write_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sites.toml");
        assert_eq!(read_state(&path, 10).unwrap(), None);
        write_atomically(&path, b"text", SECRET, true).unwrap();
        assert_eq!(read_state(&path, 10).unwrap().unwrap(), "text");
        let refused = |wanted: &str| {
            let error = read_state(&path, 10).unwrap_err().to_string();
            assert!(
                error.contains(wanted) && error.contains("sites.toml"),
                "{wanted}: {error}"
            );
        };
        for mode in [0o666, 0o602] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            refused("chmod 600");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(SECRET)).unwrap();
        for nothing in ["", " \n", "\0\0\0"] {
            fs::write(&path, nothing).unwrap();
            refused("is empty");
        }
        fs::write(&path, "12345678901").unwrap();
        refused("more than 10 bytes");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        refused("is none");
        fs::remove_dir(&path).unwrap();
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, 0o600.into(), 0).unwrap();
        refused("is none");
    }

    #[test]
    fn what_a_crash_left_is_removed_and_what_others_write_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("k");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let boot = boot().unwrap();
        let former = if boot == "00000000" {
            "00000001"
        } else {
            "00000000"
        };
        let ended = [
            format!(".k.{}", child.id()),
            format!(".k.{boot}.{}", child.id()),
            // Process 1 runs, as it did before the power cut.
            format!(".k.{former}.1"),
        ]
        .map(|name| directory.path().join(name));
        child.wait().unwrap();
        let alive = format!(".k.{boot}.1");
        let others = ["k.1", ".k.x", ".kk.999999999", ".k.1", ".k.else.1", &alive]
            .map(|name| directory.path().join(name));
        for file in others.iter().chain(&ended) {
            fs::write(file, "half").unwrap();
        }
        write_atomically(&path, b"one", SECRET, true).unwrap();
        for file in &ended {
            assert!(!file.exists(), "its process has ended: {}", file.display());
        }
        for file in &others {
            assert!(file.exists(), "{}", file.display());
        }
    }

    /// Fails each step of a write in turn, as the file system might.
    #[test]
    fn a_write_that_fails_names_no_half_and_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("k");
        write_atomically(&path, b"one", SECRET, true).unwrap();
        // A directory in the place of the temporary file, and one in the place of the file.
        let temporary = directory.path().join(format!(".k.{}", suffix()));
        fs::create_dir(&temporary).unwrap();
        assert!(write_atomically(&path, b"two", SECRET, true).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "one");
        fs::remove_dir(&temporary).unwrap();
        let full = directory.path().join("full");
        fs::create_dir_all(full.join("inside")).unwrap();
        assert!(write_atomically(&full, b"two", SECRET, true).is_err());
        assert_eq!(
            fs::read_dir(directory.path()).unwrap().count(),
            2,
            "temporary files remain"
        );
    }

    #[test]
    fn nobody_else_can_open_a_lock_and_keep_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sites.lock");
        drop(Lock::wait(&path).unwrap());
        assert_eq!(mode(&path), 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        drop(Lock::take(&path, "a hub", "stop it").unwrap());
        assert_eq!(mode(&path), 0o600, "also one of an earlier version");
    }

    const KEY: &str = "a private key";

    #[test]
    fn only_root_and_the_gateways_user_are_told_to_give_a_secret_away() {
        let path = Path::new("/etc/ropewalk/keys/hub.key");
        for (own, user) in [(0, "root"), (990, USER)] {
            let words = not_readable(path, own, user);
            assert!(words.contains(&format!("`chown {user}: ")), "{words}");
        }
        let words = not_readable(path, 65_534, "nobody");
        assert!(words.ends_with("; run it as root (sudo)"), "{words}");
        assert!(!words.contains("chown"), "{words}");
    }

    #[test]
    fn who_may_not_open_a_lock_does_not_know_whether_it_is_held() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hub.lock");
        assert!(!Lock::look(&path).unwrap(), "no gateway has ever run");
        let _lock = Lock::take(&path, "a hub", "").unwrap();
        assert!(Lock::look(&path).unwrap());
        let looked = std::thread::spawn(move || {
            let nobody = rustix::process::Uid::from_raw(65_534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            Lock::look(&path)
        });
        let error = looked.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn secret_that_others_may_read_is_refused_with_the_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("k");
        for bits in [0o640, 0o604, 0o620] {
            fs::write(&path, "s").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(bits)).unwrap();
            let error = read_secret(&path, KEY).unwrap_err().to_string();
            assert!(error.contains("chmod 600"), "{error}");
            assert!(error.contains("k holds a private key but"), "{error}");
            let error = read_secret(&path, "the password for etcd").unwrap_err();
            let words = error.to_string();
            assert!(
                words.contains("password") && !words.contains("key"),
                "{words}"
            );
        }
        for no_file in [directory.path(), Path::new("/dev/null")] {
            let error = read_secret(no_file, KEY).unwrap_err().to_string();
            assert!(error.contains("is no file"), "{error}");
        }
    }

    #[test]
    fn secret_is_a_bounded_file_of_its_reader_or_of_root_behind_any_link() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("k");
        write_atomically(&path, b"s", SECRET, false).unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(*read_secret(&link, KEY).unwrap(), "s");
        // Only root can give a file away.
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
            for path in [&path, &link] {
                let error = read_secret(path, KEY).unwrap_err().to_string();
                let other = format!("belongs to user {},", name_of(65_534));
                assert!(error.contains(&other), "{error}");
                let gateways = uzers::get_user_by_name(USER).is_some();
                let user = if gateways { USER } else { "root" };
                assert!(error.contains(&format!("`chown {user}: ")), "{error}");
            }
            std::os::unix::fs::chown(&path, Some(0), None).unwrap();
        }
        write_atomically(&path, &[b'x'; 4_097], SECRET, true).unwrap();
        let error = read_secret(&path, KEY).unwrap_err().to_string();
        assert!(error.contains("too large"), "{error}");
        write_atomically(&path, &[0xff, 0x00, 0x9f], SECRET, true).unwrap();
        let error = read_secret(&path, KEY).unwrap_err().to_string();
        assert!(
            error.contains("k should hold a private key, but is no text; put"),
            "{error}"
        );
        let pipe = directory.path().join("pipe");
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, 0o600.into(), 0).unwrap();
        let error = read_secret(&pipe, KEY).unwrap_err().to_string();
        assert!(error.contains("is no file"), "{error}");
    }

    #[test]
    fn a_lock_that_another_program_keeps_is_given_up_with_words() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let kept = Lock::wait(&path).unwrap();
        let error = Lock::wait_for(&path, Duration::from_millis(50)).unwrap_err();
        assert!(
            error.to_string().contains("another program has kept"),
            "{error}"
        );
        drop(kept);
        Lock::wait_for(&path, Duration::from_millis(50)).unwrap();
    }

    #[test]
    fn a_lock_is_waited_for_whose_owner_has_ended_and_left_a_helper() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let helper = Lock::take(&path, "a hub", "").unwrap();
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        fs::write(&path, format!("{}\n", ended.id())).unwrap();
        let ending = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(helper);
        });
        Lock::take(&path, "a hub", "").unwrap();
        ending.join().unwrap();
    }

    #[test]
    fn lock_is_refused_to_a_second_holder_and_free_after_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/hub.lock");
        let first = Lock::take(&path, "a hub", "stop it first").unwrap();
        assert!(Lock::is_held(&path));
        let error = Lock::take(&path, "a hub", "stop it first")
            .unwrap_err()
            .to_string();
        let pid = std::process::id().to_string();
        assert!(
            error.contains(&pid)
                && error.contains("a hub runs already")
                && error.ends_with("; stop it first"),
            "{error}"
        );
        drop(first);
        assert!(!Lock::is_held(&path));
        Lock::take(&path, "a hub", "stop it first").unwrap();
    }
}
