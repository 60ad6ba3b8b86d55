//! A mapping written as `[adopt.NAME]`, as the configuration reads it.

use relevo_core::outbox::adopt::{KeyFrom, Mapping, Role, TopicFrom};
use std::collections::BTreeMap;

/// The table of the configuration that means this mapping.
pub fn written(name: &str, store: Option<&str>, mapping: &Mapping) -> String {
    let name = key(name);
    let mut text = format!("[adopt.{name}]\n");
    let mut set = |key: &str, value: &str| text.push_str(&format!("{key} = {}\n", string(value)));
    if let Some(store) = store {
        set("store", store);
    }
    set("table", &mapping.table.to_string());
    match &mapping.topic {
        TopicFrom::Always(topic) => set("topic", topic),
        TopicFrom::Column { prefix } if !prefix.is_empty() => set("topic_prefix", prefix),
        TopicFrom::Column { .. } => {}
    }
    if let KeyFrom::Payload(path) = &mapping.key {
        set("key_path", &path.join("."));
    }
    if let Some(content_type) = &mapping.content_type {
        set("content_type", content_type);
    }
    if mapping.delete {
        text.push_str("delete = true\n");
    }
    columns(&mut text, &format!("adopt.{name}.columns"), &mapping.columns);
    if let Some(status) = &mapping.status {
        let pending: Vec<String> = status.pending.iter().map(|state| string(state)).collect();
        text.push_str(&format!("\n[adopt.{name}.status]\ncolumn = {}\n", string(&status.column)));
        text.push_str(&format!("pending = [{}]\n", pending.join(", ")));
        text.push_str(&format!("published = {}\n", string(&status.published)));
        if let Some(dead) = &status.dead {
            text.push_str(&format!("dead = {}\n", string(dead)));
        }
    }
    if let Some(dead) = &mapping.dead_letters {
        let table = string(&dead.table.to_string());
        text.push_str(&format!("\n[adopt.{name}.dead_letters]\ntable = {table}\n"));
        if !dead.columns.is_empty() {
            columns(&mut text, &format!("adopt.{name}.dead_letters.columns"), &dead.columns);
        }
    }
    text
}

fn columns(text: &mut String, table: &str, columns: &BTreeMap<Role, String>) {
    text.push_str(&format!("\n[{table}]\n"));
    for (role, column) in columns {
        text.push_str(&format!("{} = {}\n", role.as_str(), string(column)));
    }
}

fn string(value: &str) -> String {
    toml::Value::from(value).to_string()
}

/// A name as a key: in quotes, where it needs them.
fn key(name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if !name.is_empty() && name.chars().all(bare) { name.to_owned() } else { string(name) }
}
