/// From values to places on a line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Axis {
    from: f64,
    to: f64,
    log: bool,
}

impl Axis {
    /// From zero to a little above the largest.
    pub(super) fn linear(values: impl Iterator<Item = f64>) -> Axis {
        let most = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
        Axis { from: 0.0, to: if most > 0.0 { most * 1.05 } else { 1.0 }, log: false }
    }

    /// Whole powers of ten around all values above zero.
    pub(super) fn log(values: impl Iterator<Item = f64> + Clone) -> Axis {
        let sound = values.filter(|value| value.is_finite() && *value > 0.0);
        let least = sound.clone().fold(f64::INFINITY, f64::min);
        let most = sound.fold(0.0, f64::max);
        if most == 0.0 {
            return Axis { from: 1.0, to: 10.0, log: true };
        }
        let (from, to) = (least.log10().floor(), most.log10().ceil());
        Axis { from: 10f64.powf(from), to: 10f64.powf(to.max(from + 1.0)), log: true }
    }

    /// Where a value lies: 0 at the beginning, 1 at the end.
    pub(super) fn part(&self, value: f64) -> f64 {
        let part = match self.log {
            true => (value.max(self.from) / self.from).log10() / (self.to / self.from).log10(),
            false => (value - self.from) / (self.to - self.from),
        };
        part.clamp(0.0, 1.0)
    }

    /// Values worth a line.
    pub(super) fn ticks(&self) -> Vec<f64> {
        if self.log {
            let powers = (self.to / self.from).log10().round() as i32;
            return (0..=powers).map(|power| self.from * 10f64.powi(power)).collect();
        }
        let step = step(self.to - self.from);
        let count = ((self.to - self.from) / step).floor() as u32;
        (0..=count).map(|n| self.from + f64::from(n) * step).collect()
    }
}

/// 1, 2 or 5 times a power of ten, so that there are about five.
fn step(reach: f64) -> f64 {
    let rough = reach / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    steps.into_iter().map(|n| n * power).find(|step| *step >= rough).unwrap_or(power * 10.0)
}

/// A number with as many digits as it needs: `250k`, `1.5`.
pub(super) fn short(value: f64) -> String {
    let trimmed = |value: f64| {
        let text = format!("{value:.2}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    match value {
        v if v >= 1e6 => format!("{}M", trimmed(v / 1e6)),
        v if v >= 1e3 => format!("{}k", trimmed(v / 1e3)),
        v => trimmed(v),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        let axis = Axis::linear([3.0, 98.0].into_iter());
        assert_eq!(axis.ticks(), [0.0, 50.0, 100.0]);
        assert_eq!(Axis::linear(std::iter::empty()).part(0.5), 0.5);
        let axis = Axis::log([0.4, 80.0].into_iter());
        let shown: Vec<String> = axis.ticks().into_iter().map(short).collect();
        assert_eq!(shown, ["0.1", "1", "10", "100"]);
        assert!((axis.part(1.0) - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(axis.part(0.0), 0.0);
    }

    #[test]
    fn numbers_are_short() {
        let shown: Vec<String> =
            [0.0, 0.25, 7.0, 1500.0, 250_000.0, 1e7].into_iter().map(short).collect();
        assert_eq!(shown, ["0", "0.25", "7", "1.5k", "250k", "10M"]);
    }
}
