//! What a running gateway may do: little. Its helper may do the rest, and ends with it.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use ropewalk_e2e::{Lab, ready, two_links};
use ropewalk_testbed::gateway::Gateway;
use ropewalk_testbed::process::Program;

const PATIENCE: Duration = Duration::from_secs(20);
/// Bits of capabilities(7).
const NET_ADMIN: u64 = 1 << 12;
const SYS_PTRACE: u64 = 1 << 19;
const SYS_ADMIN: u64 = 1 << 21;

/// A line of `status` of a process or thread.
fn field(directory: &str, name: &str) -> String {
    let text = fs::read_to_string(format!("{directory}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().trim_start_matches(':').trim().to_owned()
}

fn capabilities(directory: &str) -> u64 {
    u64::from_str_radix(&field(directory, "CapEff"), 16).unwrap()
}

fn pid(gateway: &Gateway) -> u32 {
    gateway.process().unwrap().pid()
}

/// Process numbers of the helpers of a process.
fn helpers(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let of_parent = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.contains("Name:\tropewalk-helper\n")
            && status.contains(&format!("PPid:\t{parent}\n"))
    };
    numbers.filter(of_parent).collect()
}

#[test]
fn a_running_gateway_has_few_rights_in_every_thread_and_its_helper_has_those_for_the_network() {
    if !ready() {
        return;
    }
    let lab = Lab::new("rights", two_links()).unwrap();
    for gateway in [&lab.hub, &lab.site] {
        let process = pid(gateway);
        let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
        let mut count = 0;
        for thread in threads.flatten() {
            let thread = thread.path().display().to_string();
            let rights = capabilities(&thread);
            assert_eq!(
                rights & (NET_ADMIN | SYS_PTRACE | SYS_ADMIN),
                0,
                "{rights:x}"
            );
            assert_eq!(field(&thread, "Seccomp"), "2");
            assert_eq!(field(&thread, "NoNewPrivs"), "1");
            count += 1;
        }
        assert!(count > 1, "a gateway has a thread for its engine");
        let helpers = helpers(process);
        assert_eq!(helpers.len(), 1, "of {process}");
        let rights = capabilities(&format!("/proc/{}", helpers[0]));
        assert_eq!(rights & NET_ADMIN, NET_ADMIN, "{rights:x}");
    }
}

#[test]
fn a_helper_ends_with_a_gateway_that_was_killed_and_the_next_start_finds_nothing_in_its_way() {
    if !ready() {
        return;
    }
    let mut lab = Lab::new("rightless", two_links()).unwrap();
    let helper = helpers(pid(&lab.site))[0];
    lab.site.kill();
    let begin = Instant::now();
    while fs::exists(format!("/proc/{helper}")).unwrap() {
        assert!(begin.elapsed() < PATIENCE, "the helper {helper} lives on");
        std::thread::sleep(Duration::from_millis(10));
    }
    lab.site.start().unwrap();
    lab.site.wait_paths(2, PATIENCE).unwrap();
}

/// The command as a process of root has it that may not trace everybody, as gateways are.
fn without_ptrace(command: &[&str]) -> Program {
    let program = Program::new("setpriv").arg("--bounding-set=-sys_ptrace");
    program.args(command.iter().copied())
}

#[test]
fn gateways_of_the_same_user_cannot_read_the_memory_of_one_another() {
    if !ready() {
        return;
    }
    let lab = Lab::new("memory", two_links()).unwrap();
    let reads = |process: u32| {
        let script = format!("exec 3< /proc/{process}/mem");
        let finished = without_ptrace(&["sh", "-c", &script])
            .run(PATIENCE)
            .unwrap();
        let refused = finished.stderr.contains("Permission denied");
        assert_ne!(finished.status.success(), refused, "{}", finished.stderr);
        !refused
    };
    let other = without_ptrace(&["sleep", "60"]);
    let mut other = other.start(lab.topology.directory(), "other").unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert!(reads(other.pid()), "who is not shut out is read");
    for gateway in [&lab.hub, &lab.site] {
        let process = pid(gateway);
        assert!(!reads(process), "a gateway");
        assert!(!reads(helpers(process)[0]), "its helper");
    }
    other.kill();
}

/// Has a process make a system call with zeros for arguments; the number of its error, 0 for none. `None`
/// without gdb.
fn call_in(process: u32, number: u32) -> Option<i32> {
    let call = format!(
        "printf \"result %ld errno %d\\n\", ((long (*)(long, ...)) syscall)({number}, 0, 0, 0, 0), \
         *((int *(*)(void)) __errno_location)()"
    );
    let output = Command::new("gdb")
        .args(["-batch", "-nx", "-p", &process.to_string(), "-ex", &call])
        .output();
    let output = output.ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("result "));
    let line = line.unwrap_or_else(|| {
        panic!("gdb: {text}{}", String::from_utf8_lossy(&output.stderr));
    });
    let (result, errno) = line.split_once(" errno ").unwrap();
    Some(if result.starts_with('-') {
        errno.trim().parse().unwrap()
    } else {
        0
    })
}

#[test]
#[cfg(target_arch = "x86_64")]
fn system_calls_that_are_not_on_the_list_fail_in_a_running_gateway() {
    const EPERM: i32 = 1;
    if !ready() {
        return;
    }
    let lab = Lab::new("calls", two_links()).unwrap();
    let process = pid(&lab.site);
    // execve, fork, ptrace, setuid, unshare, bpf.
    for number in [59, 57, 101, 105, 272, 321] {
        let Some(error) = call_in(process, number) else {
            eprintln!("skipped: no gdb");
            return;
        };
        assert_eq!(error, EPERM, "system call {number}");
    }
    // getpid is on the list: it is the list that refused.
    assert_eq!(call_in(process, 39), Some(0));
    lab.site.wait_paths(2, PATIENCE).unwrap();
}
