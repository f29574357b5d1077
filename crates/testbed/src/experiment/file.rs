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
    /// The kernel, or a plan without traffic, cannot have this setting.
    #[error("{key}: {problem}")]
    Setting {
        /// The key.
        key: String,
        /// What is wrong and what to do.
        problem: String,
    },
}

impl PlanFileError {
    /// A key that cannot be used, and what to do.
    pub(super) fn setting(key: &str, problem: &str) -> Self {
        Self::Setting {
            key: key.into(),
            problem: problem.into(),
        }
    }

    /// Whether the message names the file.
    #[must_use]
    pub const fn names_file(&self) -> bool {
        match self {
            Self::Unreadable { .. } | Self::Wrong { .. } => true,
            Self::Link { .. }
            | Self::SharedLink { .. }
            | Self::Access { .. }
            | Self::Setting { .. } => false,
        }
    }
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
