//! Estimators fed by the egress's reports: one-way delay, loss and burstiness. Also the counter
//! with which the egress makes those reports.
//!
//! The egress counts per path ([`PathArrivals`]), its tunnel carries the counts back, and the
//! ingress turns them into what schedulers read: [`OneWayDelay`] and [`LossEstimator`].

mod arrivals;
mod feedback;
mod full_rate;
mod loss;
mod one_way_delay;
mod tuning;

pub use arrivals::PathArrivals;
pub use feedback::{
    DELAY_MODULUS_US, DelaySample, EgressFeedback, PathFeedback, delay_difference_us,
};
pub use full_rate::FullRate;
pub use loss::{Gilbert, LossEstimator};
pub use one_way_delay::OneWayDelay;
pub use tuning::RESTART_AFTER;
