//! Whether the machine has time to spare: runs on one that has none do not tell what they should.

/// Processor time of the whole machine, in the kernel's ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessorTime {
    all: u64,
    /// Idle, or for programs of low priority, which give way.
    idle: u64,
    /// What the host of a virtual machine did not give it.
    stolen: u64,
}

impl ProcessorTime {
    /// Since the machine started.
    #[must_use]
    pub fn now() -> Self {
        let text = std::fs::read_to_string("/proc/stat");
        text.map(|text| Self::parse(&text)).unwrap_or_default()
    }

    /// The first line of `/proc/stat` (proc(5)) has user, nice, system, idle, iowait, irq, softirq
    /// and steal. The values that follow are contained in the first two.
    fn parse(text: &str) -> Self {
        let line = text.lines().next().unwrap_or_default();
        let fields = line.split_whitespace().skip(1).take(8);
        let fields: Vec<u64> = fields.filter_map(|field| field.parse().ok()).collect();
        let field = |index: usize| fields.get(index).copied().unwrap_or(0);
        Self {
            all: fields.iter().sum(),
            idle: field(1) + field(3) + field(4),
            stolen: field(7),
        }
    }

    /// Between an earlier time and this one.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            all: self.all.saturating_sub(earlier.all),
            idle: self.idle.saturating_sub(earlier.idle),
            stolen: self.stolen.saturating_sub(earlier.stolen),
        }
    }

    /// Whether programs waited for each other, or the machine itself paused.
    #[must_use]
    pub fn is_busy(self) -> bool {
        self.percent(self.idle) < IDLE_PERCENT_MIN || self.percent(self.stolen) > STOLEN_PERCENT_MAX
    }

    fn percent(self, part: u64) -> u64 {
        part * 100 / self.all.max(1)
    }

    /// Runs on a machine without time to spare do not tell what they should.
    #[must_use]
    pub fn note(self) -> String {
        let (idle, stolen) = (self.percent(self.idle), self.percent(self.stolen));
        let verdict = if self.is_busy() {
            ": too busy, do not trust these figures"
        } else {
            ""
        };
        format!(
            "processors {idle} % idle or of low priority, {stolen} % stolen by the host{verdict}"
        )
    }
}

/// With less idle time programs wait for each other.
const IDLE_PERCENT_MIN: u64 = 10;
/// With more the machine itself pauses.
const STOLEN_PERCENT_MAX: u64 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_machine_is_named() {
        let first = ProcessorTime::parse("cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 2\n");
        let idle = ProcessorTime::parse("cpu  150 40 150 860 0 0 0 0 7 0\n");
        assert_eq!(
            idle.since(first).note(),
            "processors 50 % idle or of low priority, 0 % stolen by the host"
        );
        let busy = ProcessorTime::parse("cpu  190 0 190 805 5 0 0 10 0 0\n");
        let note = busy.since(first).note();
        assert!(
            note.starts_with("processors 5 % idle or of low priority, 5 % stolen"),
            "{note}"
        );
        assert!(note.contains("do not trust"), "{note}");
        assert!(busy.since(first).is_busy() && !idle.since(first).is_busy());
    }
}
