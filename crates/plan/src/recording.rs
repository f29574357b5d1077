//! Reads the files of capacity traces, for the runners and for the emulated link.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use ropewalk_netem::{TRACE_BYTES_MAX, trace_text};

/// The text of a trace file.
///
/// # Errors
/// When the file cannot be read, is a device, a pipe or a directory, is larger than a trace can be,
/// or has something else in it than text: the message names the file and what to do.
pub fn read_trace(file: &Path) -> Result<String, String> {
    let name = file.display();
    let unreadable = |error| format!("cannot read {name}: {error}");
    // Asked before the file is opened: opening a pipe waits for its writer.
    if !file.metadata().map_err(unreadable)?.is_file() {
        return Err(format!("{name} is no regular file; name a file of a trace"));
    }
    let mut bytes = Vec::new();
    let opened = File::open(file).map_err(unreadable)?;
    let mut bounded = opened.take(TRACE_BYTES_MAX + 1);
    bounded.read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > TRACE_BYTES_MAX {
        return Err(format!(
            "{name} has more than {TRACE_BYTES_MAX} bytes; shorten the trace"
        ));
    }
    trace_text(bytes).map_err(|problem| format!("{name}, {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_with_text_are_read() {
        let file = std::env::temp_dir().join(format!("ropewalk-trace-{}", std::process::id()));
        std::fs::write(&file, "1,2\n").unwrap();
        assert_eq!(read_trace(&file).unwrap(), "1,2\n");
        std::fs::write(&file, b"1,2\n\xff\n").unwrap();
        let error = read_trace(&file).unwrap_err();
        assert!(error.contains(", line 2: no UTF-8 text"), "{error}");
        std::fs::remove_file(&file).unwrap();
        let error = read_trace(&file).unwrap_err();
        assert!(error.starts_with("cannot read "), "{error}");
        let error = read_trace(Path::new("/dev/zero")).unwrap_err();
        assert!(error.starts_with("/dev/zero is no regular file"), "{error}");
    }
}
