use crate::expect;
use relevo_core::outbox::Snapshot;

/// A snapshot that is read is written alike, and answers as PostgreSQL's own would.
pub(crate) fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let snapshot: Snapshot = match text.parse() {
        Ok(snapshot) => snapshot,
        Err(error) => return expect::error(&error),
    };
    assert_eq!(snapshot.to_string().parse::<Snapshot>().ok().as_ref(), Some(&snapshot));
    let Snapshot { xmin, xmax, xip } = &snapshot;
    assert!(*xmin >= 1 && xmin <= xmax, "{text:?}");
    assert!(xip.is_sorted_by(|a, b| a < b), "{text:?}");
    for xid in xip {
        assert!(xmin <= xid && xid < xmax, "{text:?}: {xid} cannot be in progress");
        assert!(!snapshot.sees(*xid));
    }
    assert!(!snapshot.sees(*xmax) && snapshot.sees(xmin - 1));
    assert!(snapshot.finished_by(&snapshot).is_empty());
}
