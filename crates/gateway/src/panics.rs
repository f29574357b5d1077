//! Messages of panics. The program goes on after most of them, and whoever can cause one could fill the log.

use std::sync::{Mutex, PoisonError};

use ropewalk_types::{Instant, Lines};

/// Lets the messages of panics through at a bounded rate, from now on and for all threads.
pub fn limit_messages() {
    let usual = std::panic::take_hook();
    let (start, lines) = (std::time::Instant::now(), Mutex::new(Lines::default()));
    std::panic::set_hook(Box::new(move |panic| {
        let admitted = {
            let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
            let allowed = lines.allow(Instant::ZERO + start.elapsed());
            allowed.then(|| lines.take_left_out())
        };
        let Some(left_out) = admitted else { return };
        if left_out > 0 {
            tracing::error!(left_out, "panics of which the log has no message");
        }
        usual(panic);
    }));
}
