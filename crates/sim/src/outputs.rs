//! Files that a run writes beside its report. They are made when the run begins, so that a plan that
//! is refused leaves the files of an earlier run as they are.

use crate::capture::Capture;
use crate::events::Trace;
use crate::run::SimError;
use ropewalk_plan::Plan;
use std::fs::File;
use std::io::{BufWriter, Error, Result, Write};
use std::path::PathBuf;

/// What is to be written.
#[derive(Default)]
pub struct Outputs {
    /// The log of events.
    pub events: Option<Box<dyn Write + Send>>,
    /// The directory of packets.
    pub pcap: Option<PathBuf>,
}

impl Outputs {
    /// Makes the files, with their headers.
    pub fn open(self, plan: &Plan, seed: u64) -> std::result::Result<Trace, SimError> {
        let mut trace = match self.events {
            Some(sink) => Trace::with_log(sink, plan, seed).map_err(failed)?,
            None => Trace::default(),
        };
        if let Some(directory) = self.pcap {
            let names: Vec<&str> = plan.path.iter().map(|path| path.name.as_str()).collect();
            let capture = Capture::create(&directory, &names).map_err(SimError::Output)?;
            trace.capture = Some(Box::new(capture));
        }
        Ok(trace)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "handed to map_err")]
fn failed(error: Error) -> SimError {
    SimError::Output(format!("the log of events: {error}"))
}

/// A file that is made by the first write, and whose errors name it.
pub struct LogFile {
    name: PathBuf,
    file: Option<BufWriter<File>>,
}

impl LogFile {
    /// The file of this name, which is not made yet.
    #[must_use]
    pub const fn new(name: PathBuf) -> Self {
        Self { name, file: None }
    }

    fn with_file<T>(&mut self, act: impl FnOnce(&mut BufWriter<File>) -> Result<T>) -> Result<T> {
        let told = |error: Error| {
            let text = format!("cannot write {}: {error}", self.name.display());
            Error::new(error.kind(), text)
        };
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(BufWriter::new(File::create(&self.name).map_err(told)?)),
        };
        act(file).map_err(told)
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.with_file(|file| file.write(bytes))
    }

    fn flush(&mut self) -> Result<()> {
        self.with_file(BufWriter::flush)
    }
}
