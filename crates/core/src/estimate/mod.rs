//! Estimators fed by the exit's reports: one-way delay, loss and burstiness.

mod feedback;

pub use feedback::{
    DELAY_MODULUS_US, DelaySample, ExitFeedback, PathFeedback, delay_difference_us,
};
