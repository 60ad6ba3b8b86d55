//! The few things a query can ask for.

use super::problem::Problem;
use axum::http::StatusCode;

/// The value of a name in a query.
pub(super) fn asked<'q>(query: &'q Option<String>, name: &str) -> Option<&'q str> {
    let pairs = query.as_deref().unwrap_or_default().split('&');
    pairs
        .filter_map(|pair| pair.split_once('='))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value)
}

/// How many are wanted.
pub(super) fn limit(query: &Option<String>, otherwise: i64) -> Result<i64, Problem> {
    let odd = |_| Problem::new(StatusCode::BAD_REQUEST, "limit is a number");
    asked(query, "limit").map_or(Ok(otherwise), |text| text.parse().map_err(odd))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_and_an_odd_limit_is_refused() {
        let query = Some("after=a-1&limit=7".to_owned());
        assert_eq!(asked(&query, "after"), Some("a-1"));
        assert_eq!(limit(&query, 50).ok(), Some(7));
        assert_eq!(limit(&None, 50).ok(), Some(50));
        assert!(limit(&Some("limit=many".to_owned()), 50).is_err());
    }
}
