//! Which rows lie between two ticks.

use relevo_core::outbox::{Snapshot, Tick, TickRef, Window};
use std::hint::black_box;

/// Transactions in progress at the first tick, every other of which has ended by the second.
fn tick(number: i64, xmin: i64, xmax: i64, xip: Vec<i64>, top: i64) -> Tick {
    Tick {
        tick: TickRef { number, nonce: 9 },
        snapshot: Snapshot { xmin, xmax, xip },
        low: top,
        top,
        floor: 0,
        ..Tick::zero()
    }
}

/// A window is made, and 64 rows are asked for: late ones, main ones, and some of neither.
pub(crate) fn rows(times: u64) -> u64 {
    let first = tick(1, 100, 200, (100..200).step_by(5).collect(), 1000);
    let second = tick(2, 110, 300, (110..300).step_by(10).collect(), 2000);
    let mut contained = 0;
    for _ in 0..times {
        let Ok(window) = Window::between(black_box(&first), black_box(&second)) else { return 0 };
        let rows = (0..64).map(|n| (900 + n * 17, 100 + n * 3));
        contained += rows.filter(|(seq, xid)| window.contains(*seq, *xid)).count() as u64;
    }
    contained
}
