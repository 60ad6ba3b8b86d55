//! Seeded mutations: the same seed always makes the same inputs.

use relevo_core::clock::Rng;

/// No input grows beyond this.
const MOST_BYTES: usize = 1 << 16;

/// What decoders have special eyes for.
const TOKENS: &[&[u8]] = &[
    b"\x1f",
    b"\0",
    b"\n",
    b"\r\n",
    b"\x1b[31m",
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xe2\x80\xae",
    b"%",
    b"%00",
    b"%+1",
    b"\"",
    b"'",
    b"`",
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b": ",
    b",",
    b".",
    b"..",
    b"*",
    b"#",
    b"@",
    b"/",
    b"?",
    b"=",
    b"-",
    b"+",
    b"e400",
    b"NaN",
    b"inf",
    b"null",
    b"-0",
    b"0.2",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"18446744073709551616",
    b"4294967295",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\0\0\0\x04",
];

/// Mutates members of a corpus.
#[derive(Debug)]
pub struct Mutator<'a> {
    rng: Rng,
    corpus: &'a [Vec<u8>],
}

impl<'a> Mutator<'a> {
    /// Mutates members of `corpus`, all decided by `seed`.
    pub fn new(seed: u64, corpus: &'a [Vec<u8>]) -> Self {
        Self { rng: Rng::seeded(seed), corpus }
    }

    /// The next input: one to eight changes to some member.
    pub fn input(&mut self) -> Vec<u8> {
        let mut input = self.member().to_vec();
        for _ in 0..=self.below(8) {
            self.change(&mut input);
        }
        input.truncate(MOST_BYTES);
        input
    }

    fn below(&mut self, bound: usize) -> usize {
        self.rng.below(bound as u64) as usize
    }

    fn member(&mut self) -> &'a [u8] {
        let index = self.below(self.corpus.len());
        self.corpus.get(index).map_or(&[], Vec::as_slice)
    }

    /// A range of `input`, most often a short one.
    fn range(&mut self, input: &[u8]) -> std::ops::Range<usize> {
        let start = self.below(input.len() + 1);
        let most = (input.len() - start).min(if self.below(4) == 0 { MOST_BYTES } else { 16 });
        start..start + self.below(most + 1)
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        match self.below(8) {
            0 => self.flip(input),
            1 => {
                let range = self.range(input);
                input.drain(range);
            }
            2 => {
                let token = TOKENS[self.below(TOKENS.len())];
                self.insert(input, token);
            }
            3 => {
                let token = TOKENS[self.below(TOKENS.len())];
                let range = self.range(input);
                input.splice(range, token.iter().copied());
            }
            4 => self.splice_of_another(input),
            5 => {
                let copy = input[self.range(input)].to_vec();
                self.insert(input, &copy);
            }
            6 => self.repeat(input),
            _ => {
                let byte = self.below(256) as u8;
                self.insert(input, &[byte]);
            }
        }
    }

    fn flip(&mut self, input: &mut [u8]) {
        if !input.is_empty() {
            let at = self.below(input.len());
            input[at] ^= 1 << self.below(8);
        }
    }

    fn insert(&mut self, input: &mut Vec<u8>, piece: &[u8]) {
        let at = self.below(input.len() + 1);
        input.splice(at..at, piece.iter().copied());
    }

    fn splice_of_another(&mut self, input: &mut Vec<u8>) {
        let other = self.member();
        let piece = &other[self.range(other)];
        let range = self.range(input);
        input.splice(range, piece.iter().copied());
    }

    /// Limits are only met by what is long.
    fn repeat(&mut self, input: &mut Vec<u8>) {
        let piece = input[self.range(input)].to_vec();
        let times = 1 << self.below(12);
        let room = MOST_BYTES / piece.len().max(1);
        let long = piece.repeat(room.min(times));
        self.insert(input, &long);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_makes_the_same_inputs_and_another_seed_others() {
        let corpus = [b"topic.created".to_vec(), b"#".to_vec()];
        let inputs = |seed| {
            let mut mutator = Mutator::new(seed, &corpus);
            (0..200).map(|_| mutator.input()).collect::<Vec<_>>()
        };
        assert_eq!(inputs(7), inputs(7));
        assert_ne!(inputs(7), inputs(8));
        assert!(inputs(7).iter().any(|input| input.len() > 300), "some are long");
    }
}
