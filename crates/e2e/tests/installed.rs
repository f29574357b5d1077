//! What the Debian package makes of a machine: who may write what, and what becomes of earlier versions' files.
//!
//! Everything happens in a mount namespace and a network namespace of its own, with copies of `/etc` and `/var/lib`.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ropewalk_e2e::ready;
use ropewalk_testbed::programs;

const PATIENCE: Duration = Duration::from_secs(20);

/// A machine with the files of the package, for as long as this lives.
struct Machine {
    holder: Child,
    program: PathBuf,
}

/// Where the repository is.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

impl Machine {
    fn new() -> Self {
        // A copy of a directory on a file system of its own; programs that make users want to lock files there.
        let script = r#"
            own() { mount -t tmpfs own /mnt && cp -a "$1/." /mnt/ && mount --move /mnt "$1"; }
            own /etc; own /var/lib
            mount -t tmpfs own /run
            mkdir -p /usr/lib/sysusers.d && mount -t tmpfs own /usr/lib/sysusers.d
            cp "$REPOSITORY/packaging/ropewalk.sysusers" /usr/lib/sysusers.d/ropewalk.conf
            mkdir /var/lib/bin && cp "$PROGRAM" /var/lib/bin/ropewalk
            rm -rf /etc/ropewalk /var/lib/ropewalk
            ip link set lo up
            echo ready; exec sleep 600
        "#;
        let program = programs::own("ropewalk").unwrap();
        let mut holder = Command::new("unshare")
            .args(["--mount", "--net", "sh", "-ec", script])
            .env("REPOSITORY", repository())
            .env("PROGRAM", &program)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = holder.stdout.as_mut().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self {
            holder,
            program: "/var/lib/bin/ropewalk".into(),
        }
    }

    fn command(&self, script: &str) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args([
                "--mount",
                "--net",
                "--target",
                &self.holder.id().to_string(),
            ])
            .args(["sh", "-ec", script])
            .env("ROPEWALK", &self.program)
            .env("REPOSITORY", repository());
        command
    }

    /// What a script of root says; it must succeed.
    fn run(&self, script: &str) -> String {
        let output = self.command(script).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}:\n{text}{errors}");
        format!("{text}{errors}")
    }

    /// Whether a script succeeds that the user of the gateways runs, with the rights of a site's unit.
    fn gateway(&self, script: &str) -> bool {
        let script = format!("{AS_GATEWAY} sh -ec '{script}'");
        self.command(&script).output().unwrap().status.success()
    }

    fn install(&self) -> String {
        self.run("sh $REPOSITORY/packaging/debian/postinst configure 0.1.0 2>&1")
    }

    fn owner(&self, path: &str) -> String {
        let said = self.run(&format!("stat -c %U:%G:%a {path}"));
        said.trim().to_owned()
    }
}

/// Runs what follows as a unit of the package would.
const AS_GATEWAY: &str = "setpriv --reuid=ropewalk --regid=ropewalk --clear-groups --no-new-privs \
     --bounding-set=-all,+net_admin,+net_raw,+net_bind_service,+chown \
     --inh-caps=-all,+net_admin,+net_raw,+net_bind_service,+chown \
     --ambient-caps=-all,+net_admin,+net_raw,+net_bind_service,+chown";

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Makes what the package of the former version left: everything belongs to the user of the gateways.
const FORMER: &str = r#"
    getent passwd ropewalk >/dev/null || useradd --system --user-group ropewalk
    mkdir -p /etc/ropewalk/harbour /etc/ropewalk/tls
    $ROPEWALK --config /etc/ropewalk/hub.toml hub --init >/dev/null 2>&1
    cd /etc/ropewalk
    mv keys/hub.key hub.key && rmdir keys
    cp hub.key hub.key.next; cp hub.key harbour/site.key; cp hub.key tls/controller.key
    sed "s|^# key_file.*|key_file = \"/etc/ropewalk/hub.key\"|" hub.toml >named.toml
    echo >harbour/site.toml
    ln -s /root keys
    ln -s /etc/shadow linked.toml
    echo precious >/etc/precious; chmod 644 /etc/precious; ln /etc/precious second.toml
    chown -hR ropewalk:ropewalk /etc/ropewalk
    chown root:root /etc/precious
"#;

#[test]
fn an_upgrade_leaves_gateways_their_keys_to_write_and_nothing_else_that_root_reads() {
    if !ready() {
        return;
    }
    let machine = Machine::new();
    machine.run(FORMER);
    let key = machine.run("$ROPEWALK key --key-file /etc/ropewalk/hub.key 2>/dev/null");
    let shadow = machine.owner("/etc/shadow");
    assert!(
        machine.gateway("echo >>/etc/ropewalk/hub.toml"),
        "as it was"
    );
    let said = machine.install();
    assert!(
        said.contains("moved the key /etc/ropewalk/hub.key to /etc/ropewalk/keys"),
        "{said}"
    );

    for (path, owner) in [
        ("/etc/ropewalk", "root:ropewalk:755"),
        ("/etc/ropewalk/hub.toml", "root:ropewalk:640"),
        ("/etc/ropewalk/harbour", "root:ropewalk:755"),
        ("/etc/ropewalk/harbour/site.toml", "root:ropewalk:640"),
        ("/etc/ropewalk/tls/controller.key", "root:ropewalk:600"),
        ("/etc/ropewalk/keys", "ropewalk:ropewalk:700"),
        ("/etc/ropewalk/keys/hub.key", "ropewalk:ropewalk:600"),
        ("/etc/ropewalk/keys/hub.key.next", "ropewalk:ropewalk:600"),
        (
            "/etc/ropewalk/harbour/keys/site.key",
            "ropewalk:ropewalk:600",
        ),
        // What lay in wait there is as it was.
        ("/etc/shadow", &shadow),
        ("/etc/precious", "root:root:644"),
        ("/root", "root:root:700"),
    ] {
        assert_eq!(machine.owner(path), owner, "{path}");
    }
    for script in [
        "echo >>/etc/ropewalk/hub.toml",
        "mv /etc/ropewalk/hub.toml /etc/ropewalk/other.toml",
        "touch /etc/ropewalk/new",
        "rm /etc/ropewalk/hub.key",
        "echo >>/etc/ropewalk/harbour/site.toml",
        "touch /etc/ropewalk/harbour/new",
        "cat /etc/ropewalk/tls/controller.key",
    ] {
        assert!(!machine.gateway(script), "a gateway may {script}");
    }
    assert!(machine.gateway("cat /etc/ropewalk/hub.toml; touch /etc/ropewalk/keys/new"));
    // The key is the same for root and for the gateway, by its new name and by the one that earlier versions know.
    for path in ["/etc/ropewalk/hub.key", "/etc/ropewalk/keys/hub.key"] {
        assert_eq!(
            machine.run(&format!("$ROPEWALK key --key-file {path} 2>/dev/null")),
            key
        );
        assert!(machine.gateway(&format!("$ROPEWALK key --key-file {path}")));
    }
    assert_eq!(
        machine.run("$ROPEWALK --config /etc/ropewalk/hub.toml key 2>/dev/null"),
        key
    );
    // A second time changes nothing, and says nothing.
    let again = machine.install();
    assert!(!again.contains("moved"), "{again}");
    assert_eq!(
        machine.run("$ROPEWALK --config /etc/ropewalk/hub.toml key 2>/dev/null"),
        key
    );
    earlier_version_in_between(&machine);
}

fn earlier_version_in_between(machine: &Machine) {
    // An earlier version in between has taken everything back, and has replaced the link.
    machine.run(
        "rm /etc/ropewalk/hub.key; mv /etc/ropewalk/keys/hub.key.next /etc/ropewalk/hub.key; \
                 chown -hR ropewalk:ropewalk /etc/ropewalk",
    );
    machine.install();
    let kept = machine.run("ls /etc/ropewalk/keys");
    assert!(kept.contains("hub.key.before-"), "{kept}");
    assert_eq!(machine.owner("/etc/ropewalk/hub.toml"), "root:ropewalk:640");
}

/// Gateways of the former version could write and name files in the whole directory.
#[test]
fn an_upgrade_gives_gateways_no_secret_of_root_that_they_have_named_or_moved() {
    if !ready() {
        return;
    }
    let machine = Machine::new();
    machine.run(FORMER);
    machine.run(
        "umask 077; cd /etc/ropewalk/tls; for name in secret moved; do echo precious >$name.key; done",
    );
    let planted = r#"
        cd /etc/ropewalk
        echo "key_file = \"/etc/ropewalk/tls/secret.key\"" >evil.toml
        mkdir boat; cp evil.toml boat/site.toml
        mv tls/moved.key relay.key
    "#;
    assert!(machine.gateway(planted));
    // The second time the configurations are root's.
    for _ in 0..2 {
        let said = machine.install();
        assert!(said.contains("relay.key is root's"), "{said}");
        assert_eq!(
            machine.owner("/etc/ropewalk/evil.toml"),
            "root:ropewalk:640"
        );
        for name in ["tls/secret.key", "relay.key", "keys/relay.key"] {
            let read = format!("cat /etc/ropewalk/{name}");
            assert!(!machine.gateway(&read), "a gateway may {read}");
        }
        assert!(machine.gateway("cat /etc/ropewalk/keys/hub.key"));
    }
    assert_eq!(machine.run("cat /etc/ropewalk/relay.key"), "precious\n");
}

/// It makes a directory whenever the script is about to take one.
#[test]
fn a_gateway_that_runs_during_an_upgrade_keeps_no_directory_beside_the_keys() {
    if !ready() {
        return;
    }
    let machine = Machine::new();
    machine.run(FORMER);
    machine.run(&format!(
        r#"
        mkdir /run/busy
        cat >/run/busy/chown <<-END
		#!/bin/sh
		{AS_GATEWAY} mkdir /etc/ropewalk/late\$\$ /etc/ropewalk/harbour/late\$\$ 2>/dev/null
		exec $(command -v chown) "\$@"
		END
        chmod 755 /run/busy/chown
        PATH=/run/busy:$PATH sh $REPOSITORY/packaging/debian/postinst configure 0.1.0
        "#
    ));
    let made = machine.run("find /etc/ropewalk -type d -name 'late*'");
    assert!(
        made.contains("harbour/late"),
        "the gateway was too slow: {made}"
    );
    let kept = "find /etc/ropewalk -name keys -prune -o ! -type l ! -user root -print";
    assert_eq!(machine.run(kept), "");
}

/// Runs the script of the package until it has changed `$STEPS` things; nothing succeeds after that.
const CUT: &str = r#"
    mkdir -p /run/cut; echo "$STEPS" >/run/left
    for program in chgrp chmod chown install ln mv rm; do
        cat >/run/cut/$program <<-END
		#!/bin/sh
		left=\$(cat /run/left)
		[ "\$left" -gt 0 ] || exit 1
		echo \$((left - 1)) >/run/left
		exec $(command -v $program) "\$@"
		END
        chmod 755 /run/cut/$program
    done
    if PATH=/run/cut:$PATH sh $REPOSITORY/packaging/debian/postinst configure 0.1.0 >/dev/null 2>&1; then
        echo whole
    fi
"#;

#[test]
fn power_may_fail_at_any_step_of_an_upgrade_and_the_keys_keep_their_names() {
    if !ready() {
        return;
    }
    let machine = Machine::new();
    machine.run(FORMER);
    // As version 0.1 left it, and as the one after that did.
    for owner in ["root", "ropewalk"] {
        let former = format!(
            "cd /etc/ropewalk; rm -f keys second.toml linked.toml; cp hub.key other.key
             sed -i s/hub.key/other.key/ named.toml
             chown -hR {owner}:{owner} .; rm -rf /run/former; cp -a . /run/former"
        );
        machine.run(&former);
        let key = machine.run("cat /etc/ropewalk/hub.key");
        let mut steps = 0;
        loop {
            let cut = format!(
                "rm -rf /etc/ropewalk; cp -a /run/former /etc/ropewalk; STEPS={steps}; {CUT}"
            );
            let whole = machine.run(&cut) == "whole\n";
            let told = format!("{owner}, {steps} steps");
            assert_eq!(machine.run("cat /etc/ropewalk/hub.key"), key, "{told}");
            machine.install();
            let look = "cd /etc/ropewalk; cat hub.key keys/hub.key harbour/keys/site.key other.key;
                        stat -c %U:%a keys/hub.key keys/hub.key.next harbour/keys/site.key other.key . hub.toml;
                        readlink hub.key harbour/site.key; ls keys harbour/keys";
            let want = format!(
                "{}{}root:755\nroot:640\nkeys/hub.key\nkeys/site.key\nharbour/keys:\nsite.key\n\nkeys:\nhub.key\nhub.key.next\n",
                key.repeat(4),
                "ropewalk:600\n".repeat(4)
            );
            assert_eq!(machine.run(look), want, "{told}");
            if whole {
                break;
            }
            steps += 1;
        }
        assert!(steps > 15, "{steps}");
        machine.run("rm -rf /etc/ropewalk; cp -a /run/former /etc/ropewalk");
    }
}

#[test]
fn a_hub_of_the_package_writes_its_next_key_and_cannot_write_its_configuration() {
    if !ready() {
        return;
    }
    let machine = Machine::new();
    machine.install();
    // Root prepares, and the gateway can read it.
    let key = machine.run("$ROPEWALK hub --init >/dev/null 2>&1; $ROPEWALK key");
    assert_eq!(
        machine.owner("/etc/ropewalk/keys/hub.key"),
        "ropewalk:ropewalk:600"
    );
    assert_eq!(machine.owner("/etc/ropewalk/hub.toml"), "root:ropewalk:640");
    machine.run("install -d -o ropewalk -g ropewalk /run/ropewalk");
    let script = format!("exec {AS_GATEWAY} $ROPEWALK hub 2>/run/log");
    let mut hub = machine.command(&script).spawn().unwrap();
    let end = Instant::now() + PATIENCE;
    while !machine
        .command("$ROPEWALK status")
        .output()
        .unwrap()
        .status
        .success()
    {
        assert!(Instant::now() < end, "{}", machine.run("cat /run/log"));
        std::thread::sleep(Duration::from_millis(100));
    }
    machine.run("$ROPEWALK key rotate");
    machine.run("$ROPEWALK key rotate --switch --force");
    let now = machine.run("$ROPEWALK key");
    assert_ne!(now, key);
    assert_eq!(
        machine.owner("/etc/ropewalk/keys/hub.key"),
        "ropewalk:ropewalk:600"
    );
    let log = machine.run("cat /run/log");
    assert!(!log.contains("may write its own configuration"), "{log}");
    // A configuration of a site in a directory of its own.
    machine.run("mkdir /etc/ropewalk/boat; chown root:ropewalk /etc/ropewalk/boat");
    machine.run("$ROPEWALK --config /etc/ropewalk/boat/site.toml key generate");
    assert_eq!(
        machine.owner("/etc/ropewalk/boat/keys"),
        "ropewalk:ropewalk:700"
    );
    assert_eq!(
        machine.owner("/etc/ropewalk/boat/keys/site.key"),
        "ropewalk:ropewalk:600"
    );
    // Where the gateway could write its configuration, the log says so.
    machine.run(&format!("kill {}", hub.id()));
    hub.wait().unwrap();
    machine.run("chown ropewalk /etc/ropewalk");
    let mut hub = machine.command(&script).spawn().unwrap();
    let end = Instant::now() + PATIENCE;
    while !machine
        .run("cat /run/log")
        .contains("may write its own configuration")
    {
        assert!(Instant::now() < end, "{}", machine.run("cat /run/log"));
        std::thread::sleep(Duration::from_millis(100));
    }
    machine.run(&format!("kill {}", hub.id()));
    hub.wait().unwrap();
}

#[test]
fn units_write_below_the_configuration_to_keys_only() {
    let mut units = 0;
    for entry in std::fs::read_dir(repository().join("packaging")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        if path.extension().is_none_or(|kind| kind != "service") || !text.contains("Type=notify") {
            continue;
        }
        units += 1;
        let value = |line: &str, name: &str| line.strip_prefix(name).map(str::to_owned);
        let lines = |name: &str| -> Vec<String> {
            let values = text.lines().filter_map(|line| value(line, name));
            values
                .flat_map(|v| v.split(' ').map(str::to_owned).collect::<Vec<_>>())
                .collect()
        };
        assert!(
            lines("ReadOnlyPaths=").contains(&"/etc/ropewalk".to_owned()),
            "{path:?}"
        );
        let written = lines("ReadWritePaths=");
        let mut written = written.iter().filter(|path| path.contains("/etc/ropewalk"));
        assert!(written.all(|path| path.ends_with("/keys")), "{path:?}");
    }
    assert!(units >= 5, "{units} units");
}
