//! Configurations of tests, and what the readers say of them: `python/tests/configurations.jsonl`. A test
//! in Python asks the schemas about the same files.
//!
//! Invariant: every file that a test here reads is in the list. `UPDATE_GOLDEN=1` in the environment
//! adds what is missing.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::reader::Problems;

static LIST: Mutex<()> = Mutex::new(());

fn noted<T>(role: &str, text: &str, read: Result<T, Problems>) -> Result<T, Problems> {
    let problem = read.as_ref().err().map(ToString::to_string);
    let line = serde_json::json!({"role": role, "text": text, "problem": problem}).to_string();
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/tests/configurations.jsonl");
    let _guard = LIST.lock().unwrap_or_else(PoisonError::into_inner);
    let listed = std::fs::read_to_string(&path).unwrap_or_default();
    let mut lines: BTreeSet<&str> = listed.lines().collect();
    if lines.insert(&line) {
        assert!(
            std::env::var_os("UPDATE_GOLDEN").is_some(),
            "not in {}: {line}; run the tests with UPDATE_GOLDEN=1",
            path.display()
        );
        let all: Vec<_> = lines.into_iter().collect();
        std::fs::write(&path, all.join("\n") + "\n").expect("the list can be written");
    }
    read
}

macro_rules! noting {
    ($($role:ident: $config:ty),+) => {$(
        pub mod $role {
            use super::*;

            pub fn parse(path: &Path, text: &str) -> Result<$config, Problems> {
                noted(stringify!($role), text, crate::$role::parse(path, text))
            }
        }
    )+};
}

noting!(
    hub: crate::HubConfig,
    site: crate::SiteConfig,
    relay: crate::RelayConfig,
    balance: crate::BalanceConfig
);
