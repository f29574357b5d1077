//! Fields of a status that are metrics too, declared together.

/// A metric that is read from a status.
#[derive(Debug)]
pub struct Metric<T> {
    /// Name behind the prefix that all metrics of the status share. Counters end in `_total`.
    pub name: &'static str,
    /// Help text.
    pub help: &'static str,
    /// The value in base units (seconds, bytes, ratio); `None` while it is not known.
    pub value: fn(&T) -> Option<f64>,
}

/// What can be the value of a metric.
pub trait Measured {
    /// The value, if it is known.
    fn measured(&self) -> Option<f64>;
}

impl Measured for f64 {
    fn measured(&self) -> Option<f64> {
        Some(*self)
    }
}

impl Measured for Option<f64> {
    fn measured(&self) -> Option<f64> {
        *self
    }
}

impl Measured for u64 {
    fn measured(&self) -> Option<f64> {
        Some(*self as f64)
    }
}

impl Measured for usize {
    fn measured(&self) -> Option<f64> {
        Some(*self as f64)
    }
}

impl Measured for u8 {
    fn measured(&self) -> Option<f64> {
        Some(f64::from(*self))
    }
}

impl Measured for bool {
    fn measured(&self) -> Option<f64> {
        Some(f64::from(u8::from(*self)))
    }
}

/// Declares a status: its fields, which are the keys of its JSON, and its metrics.
///
/// `field: type => "metric name", "help text";` is a field that is a metric. A function behind the
/// help text turns the field's unit into the metric's base unit. Gateways of versions before the
/// field leave it out: it is zero then. `computed` lists the metrics that have no field.
macro_rules! status {
    (
        $(#[$about:meta])*
        $kind:ident {
            $(
                $(#[$attribute:meta])*
                $field:ident: $type:ty $(=> $metric:literal, $help:literal $(, $to_base:expr)?)?;
            )+
        }
        computed { $($name:literal, $text:literal, $value:expr;)* }
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        pub struct $kind {
            $($(#[doc = $help] #[serde(default)])? $(#[$attribute])* pub $field: $type,)+
        }

        impl $kind {
            /// The metrics that are read from it.
            pub const METRICS: &'static [$crate::Metric<Self>] = &[
                $($($crate::Metric {
                    name: $metric,
                    help: $help,
                    value: |status| {
                        let value = $crate::Measured::measured(&status.$field)?;
                        $(let to_base: fn(f64) -> f64 = $to_base; let value = to_base(value);)?
                        Some(value)
                    },
                },)?)+
                $($crate::Metric {
                    name: $name,
                    help: $text,
                    value: |status| {
                        let value: fn(&Self) -> f64 = $value;
                        Some(value(status))
                    },
                },)*
            ];
        }
    };
}
pub(crate) use status;
