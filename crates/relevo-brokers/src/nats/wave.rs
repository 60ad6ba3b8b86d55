//! Messages that are sent together, and what is known of each.

use super::answer::refused;
use async_nats::Subject;
use relevo_core::broker::Confirm;
use relevo_core::error::ErrorClass;
use std::time::Instant;

/// What became of one message.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Answer {
    Told(Confirm),
    /// Nobody listens to its subject.
    Nobody,
}

/// Messages that are sent together.
pub(super) struct Wave {
    pub(super) began: Instant,
    subjects: Vec<Option<Subject>>,
    answers: Vec<Option<Answer>>,
}

impl Wave {
    /// A message without a subject is refused before it goes.
    pub(super) fn of(subjects: impl Iterator<Item = Result<Subject, String>>) -> Self {
        let (subjects, answers) = subjects
            .map(|subject| match subject {
                Ok(subject) => (Some(subject), None),
                Err(why) => (None, Some(Answer::Told(refused(ErrorClass::Poison, why)))),
            })
            .unzip();
        Self { began: Instant::now(), subjects, answers }
    }

    /// Those whose answer is still to come.
    pub(super) fn open(&self) -> impl Iterator<Item = (usize, &Subject)> {
        let waiting = |(at, answer): (usize, &Option<Answer>)| answer.is_none().then_some(at);
        let open = self.answers.iter().enumerate().filter_map(waiting);
        open.filter_map(|at| Some((at, self.subjects[at].as_ref()?)))
    }

    /// The subjects that nobody listens to, each once.
    pub(super) fn deserted(&self) -> Vec<Subject> {
        let told = self.subjects.iter().zip(&self.answers);
        let deserted = told.filter(|(_, answer)| **answer == Some(Answer::Nobody));
        let mut subjects: Vec<Subject> =
            deserted.filter_map(|(subject, _)| subject.clone()).collect();
        subjects.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
        subjects.dedup();
        subjects
    }

    /// The first answer counts: who was told that a message is refused is not told something else later.
    pub(super) fn take(&mut self, at: usize, answer: Answer) {
        self.answers[at].get_or_insert(answer);
    }

    /// Why nobody listens to this subject, for all that found nobody. One that was sent before may be stored all the same.
    pub(super) fn explain(&mut self, subject: &Subject, reason: &Confirm) {
        self.tell(subject, reason, |answer| *answer == Some(Answer::Nobody));
    }

    /// What waits for an answer under this subject waits in vain.
    pub(super) fn refuse(&mut self, subject: &Subject, refusal: &Confirm) {
        self.tell(subject, refusal, Option::is_none);
    }

    fn tell(
        &mut self,
        subject: &Subject,
        confirm: &Confirm,
        is_meant: impl Fn(&Option<Answer>) -> bool,
    ) {
        for (of, answer) in self.subjects.iter().zip(&mut self.answers) {
            if of.as_ref() == Some(subject) && is_meant(answer) {
                *answer = Some(Answer::Told(confirm.clone()));
            }
        }
    }

    /// What each message was told; those that heard nothing get `silence`.
    pub(super) fn confirms(self, silence: &Confirm) -> Vec<Confirm> {
        let confirm = |answer| match answer {
            Some(Answer::Told(confirm)) => confirm,
            None | Some(Answer::Nobody) => silence.clone(),
        };
        self.answers.into_iter().map(confirm).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(subjects: &[&str]) -> Wave {
        let subject = |subject: &&str| match *subject {
            "" => Err("no subject".to_owned()),
            subject => Ok(Subject::from(subject)),
        };
        Wave::of(subjects.iter().map(subject))
    }

    fn down() -> Confirm {
        Confirm::Down { error: "no leader".into() }
    }

    #[test]
    fn what_has_no_subject_is_refused_and_the_others_wait() {
        let mut wave = wave(&["a", "", "b"]);
        assert_eq!(wave.open().map(|(at, _)| at).collect::<Vec<_>>(), [0, 2]);
        wave.take(2, Answer::Told(Confirm::Stored));
        wave.take(2, Answer::Told(down()));
        let refusal = refused(ErrorClass::Poison, "no subject".into());
        assert_eq!(wave.confirms(&down()), [down(), refusal, Confirm::Stored]);
    }

    #[test]
    fn a_subject_without_listeners_is_asked_about_once_and_what_was_sent_before_may_be_stored() {
        let mut wave = wave(&["b", "a", "b", "a", "c"]);
        (0..3).for_each(|at| wave.take(at, Answer::Nobody));
        wave.take(4, Answer::Told(Confirm::Stored));
        assert_eq!(wave.deserted(), [Subject::from("a"), Subject::from("b")]);
        let gone = refused(ErrorClass::Permanent, "no stream".into());
        for subject in ["a", "b", "c"] {
            wave.explain(&subject.into(), &gone);
        }
        let unknown = Confirm::Unknown { error: "silence".into() };
        let told = [gone.clone(), gone.clone(), gone, unknown.clone(), Confirm::Stored];
        assert_eq!(wave.confirms(&unknown), told);
    }

    #[test]
    fn only_what_waits_is_refused() {
        let mut wave = wave(&["a", "a", "b"]);
        wave.take(0, Answer::Told(Confirm::Stored));
        let refusal = refused(ErrorClass::Transient, "forbidden".into());
        wave.refuse(&"a".into(), &refusal);
        assert_eq!(wave.open().map(|(at, _)| at).collect::<Vec<_>>(), [2]);
        assert_eq!(wave.confirms(&down()), [Confirm::Stored, refusal, down()]);
    }
}
