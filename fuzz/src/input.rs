//! An input cut into fields.

/// Parts the fields of an input. A corpus file stays readable, and a mutation of one field leaves the others.
const SEPARATOR: u8 = 0x1f;

/// What is left of an input.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a>(Option<&'a [u8]>);

impl<'a> Input<'a> {
    /// The whole of it.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(Some(bytes))
    }

    /// The next field, if there is one.
    pub fn field(&mut self) -> Option<&'a [u8]> {
        let rest = self.0?;
        match rest.iter().position(|byte| *byte == SEPARATOR) {
            Some(at) => {
                self.0 = Some(&rest[at + 1..]);
                Some(&rest[..at])
            }
            None => self.0.take(),
        }
    }

    /// The next field as text; empty if there is none.
    pub fn text(&mut self) -> String {
        String::from_utf8_lossy(self.field().unwrap_or_default()).into_owned()
    }

    /// The next field as text, if there is one and it is not empty.
    pub fn some_text(&mut self) -> Option<String> {
        Some(self.text()).filter(|text| !text.is_empty())
    }

    /// The next field as a number; its first eight bytes, if it is not written as one.
    pub fn number(&mut self) -> i64 {
        let field = self.field().unwrap_or_default();
        let written = std::str::from_utf8(field).ok().and_then(|text| text.trim().parse().ok());
        written.unwrap_or_else(|| {
            let mut bytes = [0; 8];
            bytes.iter_mut().zip(field).for_each(|(byte, given)| *byte = *given);
            i64::from_le_bytes(bytes)
        })
    }

    /// All that is left, separators too.
    pub fn rest(&mut self) -> &'a [u8] {
        self.0.take().unwrap_or_default()
    }

    /// The fields that are left, two by two.
    pub fn pairs(&mut self) -> Vec<(String, String)> {
        let mut pairs = Vec::new();
        while self.0.is_some() {
            pairs.push((self.text(), self.text()));
        }
        pairs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_cut_at_its_separators_and_nothing_is_lost() {
        let mut input = Input::new(b"a\x1f-7\x1f\x1fb\x1fc\x1fd");
        assert_eq!((input.text().as_str(), input.number()), ("a", -7));
        assert_eq!(input.some_text(), None);
        assert_eq!(input.pairs(), [("b".into(), "c".into()), ("d".into(), String::new())]);
        assert_eq!((input.field(), input.rest()), (None, &b""[..]));
    }
}
