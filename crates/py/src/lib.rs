//! The simulator for Python.

#![forbid(unsafe_code)]

use pyo3::prelude::*;

/// Version of the simulator.
#[pyfunction]
const fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// The module `ropewalk._native`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(version, module)?)
}
