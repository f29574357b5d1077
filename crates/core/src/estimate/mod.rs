//! Estimators fed by the exit's reports: one-way delay, loss and burstiness.
