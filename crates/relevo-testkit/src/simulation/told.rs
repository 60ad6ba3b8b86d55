//! What the broker's answers said to those who heard them: what is noted afterwards is held against it.

use relevo_core::ErrorClass;
use relevo_core::broker::Confirm;
use relevo_core::event::EventId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Who asked for which subscriber, and for which event.
type About = (usize, usize, EventId);

/// Why which process was told that an event is not stored.
#[derive(Debug, Clone, Default)]
pub(super) struct Told(Arc<Mutex<BTreeMap<About, Vec<ErrorClass>>>>);

impl Told {
    /// A process heard this.
    pub(super) fn tell(&self, about: About, confirm: &Confirm) {
        let class = match confirm {
            Confirm::Stored => return,
            Confirm::Refused { class, .. } => *class,
            // Where everything else was tried, a destination that is down counts against the event.
            Confirm::Down { .. } => ErrorClass::Transient,
            _ => ErrorClass::Unknown,
        };
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.entry(about).or_default().push(class);
    }

    /// Was the process ever told this of the event?
    pub(super) fn was_told(&self, about: About, class: ErrorClass) -> bool {
        let told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.get(&about).is_some_and(|classes| classes.contains(&class))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ErrorClass::{Permanent, Transient, Unknown};

    #[test]
    fn a_process_was_told_what_it_heard_of_an_event_and_nothing_else() {
        let (told, event) = (Told::default(), EventId::fresh());
        let error = || "no".to_owned();
        for confirm in [
            Confirm::Stored,
            Confirm::Refused { class: Permanent, error: error(), after: None },
            Confirm::Unknown { error: error() },
        ] {
            told.tell((1, 0, event), &confirm);
        }
        let heard = |process| {
            [Permanent, Unknown, Transient].map(|class| told.was_told((process, 0, event), class))
        };
        assert_eq!((heard(1), heard(2)), ([true, true, false], [false; 3]));
        told.tell((2, 0, event), &Confirm::Down { error: error() });
        assert_eq!(
            heard(2),
            [false, false, true],
            "it counts against an event that was tried alone"
        );
    }
}
