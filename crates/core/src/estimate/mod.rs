//! Estimators fed by the exit's reports: one-way delay, loss and burstiness.

mod arrivals;
mod feedback;
mod loss;
mod one_way_delay;

pub use arrivals::PathArrivals;
pub use feedback::{
    DELAY_MODULUS_US, DelaySample, ExitFeedback, PathFeedback, delay_difference_us,
};
pub use loss::LossEstimator;
pub use one_way_delay::OneWayDelay;
