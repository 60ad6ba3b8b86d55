//! What a figure is counted in, and what is to be reached.

use serde::{Deserialize, Serialize};

/// What a figure is counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    EventsPerSecond,
    QueriesPerSecond,
    MicrosPerEvent,
    Millis,
    Seconds,
    Megabytes,
    Percent,
    PerEvent,
    Times,
}

impl Unit {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Unit::EventsPerSecond => "events/s",
            Unit::QueriesPerSecond => "queries/s",
            Unit::MicrosPerEvent => "µs/event",
            Unit::Millis => "ms",
            Unit::Seconds => "s",
            Unit::Megabytes => "MB",
            Unit::Percent => "% of a core",
            Unit::PerEvent => "per event",
            Unit::Times => "×",
        }
    }

    /// Only rates of events are better when they are higher; all else is a cost.
    pub(crate) fn higher_is_better(self) -> bool {
        self == Unit::EventsPerSecond
    }

    pub(crate) fn show(self, value: f64) -> String {
        match self {
            _ if !value.is_finite() => "-".to_owned(),
            Unit::EventsPerSecond => format!("{value:.0}"),
            Unit::Megabytes => format!("{value:.1}"),
            Unit::PerEvent => format!("{value:.4}"),
            _ => format!("{value:.2}"),
        }
    }
}

/// What is to be reached: by ours against another contender, or by ours alone.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Goal {
    /// Ours is at least this part of the other.
    AtLeast(f64),
    /// Ours is at most this many times the other.
    AtMost(f64),
    /// Ours is at most so many times the other and a constant more.
    Within { times: f64, plus_ms: f64 },
    /// Ours is at most this.
    AtMostValue(f64),
}

impl Goal {
    /// Whether it is reached.
    pub(crate) fn is_reached(self, ours: f64, other: f64) -> bool {
        match self {
            Goal::AtLeast(ratio) => ours >= other * ratio,
            Goal::AtMost(ratio) => ours <= other * ratio,
            Goal::Within { times, plus_ms } => ours <= other * times + plus_ms,
            Goal::AtMostValue(most) => ours <= most,
        }
    }

    pub(crate) fn show(self) -> String {
        match self {
            Goal::AtLeast(ratio) => format!("≥ {ratio:.2}"),
            Goal::AtMost(ratio) => format!("≤ {ratio:.2}"),
            Goal::Within { times, plus_ms } => format!("≤ {times} × + {plus_ms} ms"),
            Goal::AtMostValue(most) => format!("≤ {most}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_about_a_ratio_a_distance_or_a_value() {
        assert!(Goal::AtLeast(0.9).is_reached(90.0, 100.0));
        assert!(!Goal::AtLeast(0.9).is_reached(89.0, 100.0));
        assert!(Goal::AtMost(1.1).is_reached(1.1, 1.0) && !Goal::AtMost(1.1).is_reached(1.2, 1.0));
        let near = Goal::Within { times: 2.0, plus_ms: 3.0 };
        assert!(near.is_reached(5.0, 1.0) && !near.is_reached(5.1, 1.0));
        assert!(Goal::AtMostValue(48.0).is_reached(47.0, 0.0));
        assert!(!Goal::AtMostValue(48.0).is_reached(49.0, 900.0));
        assert_eq!(near.show(), "≤ 2 × + 3 ms");
    }

    #[test]
    fn only_rates_of_events_are_better_when_higher() {
        assert!(Unit::EventsPerSecond.higher_is_better());
        assert!(!Unit::Millis.higher_is_better() && !Unit::QueriesPerSecond.higher_is_better());
        assert_eq!(Unit::PerEvent.show(0.00123), "0.0012");
        assert_eq!(Unit::Millis.show(f64::NAN), "-");
    }
}
