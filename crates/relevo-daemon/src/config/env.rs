//! `RELEVO__STORE__MAIN__URL=...` overrides `[store.main] url`.

use relevo_core::error::quoted;
use relevo_core::{Error, Kind, Result};
use toml::{Table, Value};

const PREFIX: &str = "RELEVO__";

/// Keys whose values are not text.
const NUMBERS: [&str; 20] = [
    "batch",
    "batch_bytes",
    "concurrency",
    "lanes",
    "max_parked_keys",
    "max_deaths_in_a_row",
    "factor",
    "max_attempts",
    "jitter",
    "payload_bytes",
    "headers_bytes",
    "name_bytes",
    "lane_queue",
    "page_rows",
    "page_bytes",
    "queue_bytes",
    "window",
    "window_bytes",
    "max_message_bytes",
    "management_port",
];
const LISTS: [&str; 5] = ["topics", "delays", "classes", "secrets", "pending"];
const FLAGS: [&str; 1] = ["delete"];

/// In a topology what looks like a number or a flag is one, and these are lists: an adapter's keys are its own.
const TOPOLOGY: &str = "topology";
const TOPOLOGY_LISTS: [&str; 3] = ["subjects", "filters", "retry"];

/// The overrides among some environment variables, by name.
pub(super) fn overrides(
    variables: impl Iterator<Item = (String, String)>,
) -> Vec<(String, String)> {
    let mut found: Vec<_> = variables.filter(|(name, _)| name.starts_with(PREFIX)).collect();
    found.sort();
    found
}

/// Puts one override into the file's table and returns the path it landed on.
pub(super) fn apply(table: &mut Table, variable: &str, value: &str) -> Result<Vec<String>> {
    let words: Vec<&str> = variable[PREFIX.len()..].split("__").collect();
    if words.len() < 2 || words.iter().any(|word| word.is_empty()) {
        return Err(Error::new(
            Kind::InvalidConfig,
            format!(
                "the variable {} names no key; write RELEVO__TABLE__KEY or RELEVO__TABLE__NAME__KEY, such as RELEVO__STORE__MAIN__URL",
                quoted(variable)
            ),
        ));
    }
    let mut path: Vec<String> = Vec::new();
    let mut here = table;
    let (key, tables) = words.split_last().unwrap_or((&"", &[]));
    for word in tables {
        let name = spelled(here, word);
        path.push(name.clone());
        let next = here.entry(name).or_insert_with(|| Value::Table(Table::new()));
        here = next.as_table_mut().ok_or_else(|| {
            Error::new(
                Kind::InvalidConfig,
                format!(
                    "the variable {} goes through {}, which is not a table",
                    quoted(variable),
                    quoted(&path.join("."))
                ),
            )
        })?;
    }
    let key = spelled(here, key);
    path.push(key.clone());
    let in_topology = path.first().is_some_and(|table| table == TOPOLOGY);
    here.insert(key.clone(), value_of(&key, value, in_topology));
    Ok(path)
}

/// The name as the file spells it: variables know neither case nor `-`.
fn spelled(table: &Table, word: &str) -> String {
    let plain = |text: &str| text.to_lowercase().replace('-', "_");
    table
        .keys()
        .find(|key| plain(key) == plain(word))
        .cloned()
        .unwrap_or_else(|| word.to_lowercase())
}

fn value_of(key: &str, text: &str, in_topology: bool) -> Value {
    let lists: &[&str] = if in_topology { &TOPOLOGY_LISTS } else { &LISTS };
    if lists.contains(&key) {
        let items = text.split(',').map(|item| Value::String(item.trim().to_owned()));
        return Value::Array(items.filter(|item| item.as_str() != Some("")).collect());
    }
    if (in_topology || FLAGS.contains(&key))
        && let Ok(flag) = text.trim().parse::<bool>()
    {
        return Value::Boolean(flag);
    }
    if in_topology || NUMBERS.contains(&key) {
        if let Ok(number) = text.trim().parse::<i64>() {
            return Value::Integer(number);
        }
        if let Ok(number) = text.trim().parse::<f64>() {
            return Value::Float(number);
        }
    }
    Value::String(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(text: &str, variable: &str, value: &str) -> (String, Vec<String>) {
        let mut table: Table = text.parse().unwrap();
        let path = apply(&mut table, variable, value).unwrap();
        (toml::to_string(&table).unwrap(), path)
    }

    #[test]
    fn a_variable_finds_the_name_whatever_its_case_and_dashes() {
        let (text, path) =
            applied("[store.Main-DB]\nurl = \"a\"", "RELEVO__STORE__MAIN_DB__URL", "b");
        assert_eq!(
            (text.as_str(), path.join(".")),
            ("[store.Main-DB]\nurl = \"b\"\n", "store.Main-DB.url".into())
        );
    }

    #[test]
    fn numbers_and_lists_keep_their_kind() {
        let (text, _) = applied("", "RELEVO__SUBSCRIPTION__AUDIT__BATCH", "7");
        assert!(text.contains("batch = 7"), "{text}");
        let (text, _) = applied("", "RELEVO__SUBSCRIPTION__AUDIT__TOPICS", "a.*, b.#");
        assert!(text.contains("topics = [\"a.*\", \"b.#\"]"), "{text}");
    }

    #[test]
    fn in_a_topology_the_look_of_a_value_tells_its_kind() {
        let queue = "RELEVO__TOPOLOGY__RABBIT__QUEUES__JOBS__";
        for (key, value, written) in [
            ("MAX_LENGTH", "7", "max_length = 7"),
            ("SINGLE_ACTIVE_CONSUMER", "true", "single_active_consumer = true"),
            ("RETRY", "1s, 1m", "retry = [\"1s\", \"1m\"]"),
            ("MESSAGE_TTL", "7d", "message_ttl = \"7d\""),
        ] {
            let (text, _) = applied("", &format!("{queue}{key}"), value);
            assert!(text.contains(written), "{text}");
        }
        let (text, _) = applied("", "RELEVO__SUBSCRIPTION__AUDIT__RETRY", "slow");
        assert!(text.contains("retry = \"slow\""), "{text}");
    }

    #[test]
    fn a_variable_that_names_no_key_is_refused() {
        assert!(apply(&mut Table::new(), "RELEVO__STORE", "x").is_err());
        assert!(apply(&mut Table::new(), "RELEVO__STORE____URL", "x").is_err());
    }
}
