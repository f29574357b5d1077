//! A plan file: the plan, and the directory that its traces are relative to.

use std::path::{Path, PathBuf};

use ropewalk_plan::{Plan, PlanError};

/// A plan that was read from a file.
#[derive(Clone, Debug)]
pub struct PlanFile {
    /// The plan.
    pub plan: Plan,
    /// Where the file is; relative names of traces start here.
    pub directory: PathBuf,
}

/// A plan file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlanFileError {
    /// It cannot be read.
    #[error("cannot read {}: {error}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The file is not a plan.
    #[error("{}: {error}", file.display())]
    Wrong {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        error: PlanError,
    },
    /// A link of the plan cannot be made.
    #[error("path `{path}`: {problem}")]
    Link {
        /// Name of the path.
        path: String,
        /// What is wrong.
        problem: String,
    },
    /// A link that paths share cannot be made.
    #[error("link `{link}`: {problem}")]
    SharedLink {
        /// Name of the link.
        link: String,
        /// What is wrong.
        problem: String,
    },
    /// The own link of a host cannot be made.
    #[error("traffic[{section}].access.{problem}")]
    Access {
        /// Place of its section in the plan.
        section: usize,
        /// Which key, and what is wrong.
        problem: String,
    },
    /// It cannot be set up without traffic.
    #[error("{key}: {problem}")]
    SetUp {
        /// The key.
        key: &'static str,
        /// What is wrong and what to do.
        problem: &'static str,
    },
}

impl PlanFile {
    /// Reads and checks a plan.
    ///
    /// # Errors
    /// If the file cannot be read or is not a plan.
    pub fn read(file: &Path) -> Result<Self, PlanFileError> {
        let unreadable = |error| PlanFileError::Unreadable {
            file: file.to_owned(),
            error,
        };
        let text = std::fs::read_to_string(file).map_err(unreadable)?;
        let file_absolute = file.canonicalize().map_err(unreadable)?;
        let directory = file_absolute.parent().unwrap_or(Path::new("/")).to_owned();
        let plan = Plan::parse(&text).map_err(|error| PlanFileError::Wrong {
            file: file.to_owned(),
            error,
        })?;
        Ok(Self { plan, directory })
    }
}
