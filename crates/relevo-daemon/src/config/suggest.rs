//! "Did you mean ...?"

/// The known word that is nearest to a mistyped one, if any is near.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let distance = |other: &str| strsim::damerau_levenshtein(&word, &other.to_lowercase());
    let limit = (word.chars().count() / 3).clamp(1, 3);
    known
        .into_iter()
        .map(|other| (distance(other), other))
        .filter(|(d, _)| *d <= limit)
        .min()
        .map(|(_, other)| other)
}

/// `; did you mean "x"?`, or nothing.
pub fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map(|other| format!("; did you mean {other:?}?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_finds_the_word_meant() {
        let known = ["store", "topics", "to", "retry"];
        assert_eq!(nearest("tpoics", known), Some("topics"));
        assert_eq!(nearest("Store", known), Some("store"));
        assert_eq!(nearest("destination", known), None);
    }
}
