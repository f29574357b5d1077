//! How much memory this process may take.

use std::fs;
use std::path::Path;

/// Memory that this process may take, bytes: that of the machine, or the least of the bounds of its control
/// groups (`memory.max` of cgroups v2, as `MemoryMax=` of systemd sets).
#[must_use]
pub fn of_process() -> u64 {
    let machine = rustix::system::sysinfo();
    // As wide as the words of the processor.
    let total: u64 = machine.totalram as _;
    let machine = total.saturating_mul(machine.mem_unit.into());
    let group = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = group.lines().find_map(|line| line.strip_prefix("0::/"));
    let bound = group.map(|group| of_group(Path::new("/sys/fs/cgroup"), Path::new(group)));
    bound.flatten().map_or(machine, |bound| bound.min(machine))
}

/// The least bound of a group and those above it, bytes.
fn of_group(root: &Path, group: &Path) -> Option<u64> {
    let bound = |group: &Path| {
        let text = fs::read_to_string(root.join(group).join("memory.max")).ok()?;
        text.trim().parse().ok()
    };
    group.ancestors().filter_map(bound).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_bound_of_all_groups_counts() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("system.slice/ropewalk.service");
        fs::create_dir_all(&inner).unwrap();
        let group = Path::new("system.slice/ropewalk.service");
        assert_eq!(of_group(root.path(), group), None);
        fs::write(inner.join("memory.max"), "max\n").unwrap();
        assert_eq!(of_group(root.path(), group), None);
        fs::write(root.path().join("system.slice/memory.max"), "536870912\n").unwrap();
        assert_eq!(of_group(root.path(), group), Some(536_870_912));
        fs::write(inner.join("memory.max"), "268435456\n").unwrap();
        assert_eq!(of_group(root.path(), group), Some(268_435_456));
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(of_process() > 16_000_000);
    }
}
