//! The OpenAPI document and the API say the same: routes, answers and what is in them, each compared both ways.

use crate::world::{TOKEN, World};
use anyhow::bail;
use async_trait::async_trait;
use axum::http::{Method, StatusCode};
use relevo_testkit::eventually;
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use ticketflow::api::{Admin, Check, Health, OPENAPI, Serving, Site};
use ticketflow::client::Client;
use ticketflow::tickets::Tickets;
use uuid::Uuid;

const TICKETS: &str = "/api/v1/tickets";
const TICKET: &str = "/api/v1/tickets/{id}";
const STATUS: &str = "/api/v1/tickets/{id}/status";
const ASSIGNEE: &str = "/api/v1/tickets/{id}/assignee";
const LETTERS: &str = "/admin/dead-letters";
const REPLAY: &str = "/admin/dead-letters/{number}/replay";

const NEW: &str = r#"{"title": "t", "requester": "ana@example.org"}"#;
const BEGUN: &str = r#"{"status": "in_progress"}"#;
const BEN: &str = r#"{"assignee": "ben@example.org"}"#;

/// Method, path and status.
type Described = (String, String, String);

pub(crate) fn document() -> Value {
    serde_json::from_str(OPENAPI).expect("JSON")
}

/// The answers that a document describes.
fn described(document: &Value) -> BTreeSet<Described> {
    let mut all = BTreeSet::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("methods") {
            let responses = operation["responses"].as_object().expect("responses");
            let one = |status: &String| (method.to_uppercase(), path.clone(), status.clone());
            all.extend(responses.keys().map(one));
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_and_the_api_have_the_same_routes() {
    let world = World::new().await;
    let document = document();
    let served = world.client.get("/openapi.json").await.expect("an answer").json().expect("JSON");
    assert_eq!(served, document);
    let routes = |all: BTreeSet<Described>| -> BTreeSet<(String, String)> {
        all.into_iter().map(|(method, path, _)| (method, path)).collect()
    };
    let of_the_api = world.embedded.routes().iter();
    let of_the_api: BTreeSet<(String, String)> =
        of_the_api.map(|(method, path)| (method.to_string(), (*path).to_owned())).collect();
    assert_eq!(of_the_api, routes(described(&document)));
    // And the list is what answers.
    let operator = world.client.clone().token(TOKEN);
    let methods = [Method::GET, Method::POST, Method::PUT, Method::DELETE, Method::PATCH];
    for path in document["paths"].as_object().expect("paths").keys() {
        let there = path.replace("{id}", &Uuid::now_v7().to_string()).replace("{number}", "1");
        for method in &methods {
            let is_listed = of_the_api.contains(&(method.to_string(), path.clone()));
            let answer = operator.ask(method.clone(), &there, b"{}".to_vec());
            let status = answer.await.expect("an answer").status;
            let is_there = status != StatusCode::METHOD_NOT_ALLOWED;
            assert_eq!(is_listed, is_there, "{method} {path}: {status}");
        }
    }
}

/// The schema's name, where another place has it.
fn referred(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.strip_prefix("#/components/schemas/")
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn has_format(format: &str, text: &str) -> bool {
    match format {
        "uuid" => Uuid::parse_str(text).is_ok(),
        "date-time" => chrono::DateTime::parse_from_rfc3339(text).is_ok(),
        "email" => text.parse::<lettre::Address>().is_ok(),
        other => panic!("the test does not know {other}"),
    }
}

/// A value is as its schema has it. Notes which properties it had.
fn assert_fits(
    schemas: &Value,
    schema: &Value,
    value: &Value,
    at: &str,
    had: &mut BTreeSet<String>,
) {
    if let Some(name) = referred(schema) {
        return assert_fits(schemas, &schemas[name], value, name, had);
    }
    let types = match &schema["type"] {
        Value::Array(several) => several.clone(),
        one => vec![one.clone()],
    };
    assert!(types.contains(&kind(value).into()), "{at} is {value}");
    if let Some(allowed) = schema["enum"].as_array() {
        assert!(allowed.contains(value), "{at} is {value}");
    }
    if let (Some(format), Some(text)) = (schema["format"].as_str(), value.as_str()) {
        assert!(has_format(format, text), "{at} is {value}, no {format}");
    }
    for item in value.as_array().into_iter().flatten() {
        assert_fits(schemas, &schema["items"], item, at, had);
    }
    let (Some(properties), Some(there)) = (schema["properties"].as_object(), value.as_object())
    else {
        return;
    };
    for required in schema["required"].as_array().into_iter().flatten() {
        assert!(there.contains_key(required.as_str().expect("a name")), "{at} has no {required}");
    }
    for (name, value) in there {
        let at = format!("{at}.{name}");
        let property = properties.get(name).unwrap_or_else(|| panic!("{at} is not described"));
        had.insert(at.clone());
        assert_fits(schemas, property, value, &at, had);
    }
}

/// Every property that a schema describes itself.
fn properties(schema: &Value, at: &str) -> Vec<String> {
    let mut all = Vec::new();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let at = format!("{at}.{name}");
        all.extend(properties(property, &at));
        all.push(at);
    }
    if let Some(items) = schema.get("items") {
        all.extend(properties(items, at));
    }
    all
}

/// Asks, and holds each answer against the document.
struct Tour {
    document: Value,
    came: BTreeSet<Described>,
    had: BTreeSet<String>,
}

impl Tour {
    async fn ask(&mut self, client: &Client, method: Method, route: &str, there: &str, body: &str) {
        let path = route.replace("{id}", there).replace("{number}", there);
        let path = if path == route { format!("{route}{there}") } else { path };
        let answer = client.ask(method.clone(), &path, body.as_bytes().to_vec()).await;
        let answer = answer.expect("an answer");
        let (status, name) = (answer.status.as_str(), method.as_str().to_lowercase());
        let what = format!("{method} {path}: {status}");
        let content = &self.document["paths"][route][name]["responses"][status]["content"];
        let content = content.as_object().unwrap_or_else(|| panic!("{what} is not described"));
        let told = answer.content_type.split(';').next().unwrap_or_default();
        let media = content.get(told).unwrap_or_else(|| panic!("{what} is no {told}"));
        if told != "text/plain" {
            let schemas = &self.document["components"]["schemas"];
            let body = answer.json().expect("JSON");
            assert_fits(schemas, &media["schema"], &body, &what, &mut self.had);
        }
        self.came.insert((method.to_string(), route.to_owned(), status.to_owned()));
    }

    /// What any change of a ticket may be answered with, but for its success.
    async fn refusals(&mut self, client: &Client, route: &str, ticket: &str, body: &str) {
        let large = " ".repeat(2 * 1024 * 1024 + 1);
        let nobody = Uuid::now_v7().to_string();
        for (there, body) in
            [("%FF", body), (&*nobody, body), (ticket, body), (ticket, &*large), (ticket, "{}")]
        {
            self.ask(client, Method::PUT, route, there, body).await;
        }
    }

    /// What was never seen of what the document describes.
    fn unseen(&self) -> (Vec<Described>, Vec<String>) {
        let answers = described(&self.document).difference(&self.came).cloned().collect();
        let paths = self.document["paths"].as_object().expect("paths").values();
        let operations = paths.flat_map(|item| item.as_object().expect("methods").values());
        let requests: BTreeSet<&str> = operations
            .filter_map(|it| referred(&it["requestBody"]["content"]["application/json"]["schema"]))
            .collect();
        let schemas = self.document["components"]["schemas"].as_object().expect("schemas");
        let answered = schemas.iter().filter(|(name, _)| !requests.contains(name.as_str()));
        let all = answered.flat_map(|(name, schema)| properties(schema, name));
        (answers, all.filter(|property| !self.had.contains(property)).collect())
    }
}

/// A part that does not answer.
struct Down;

#[async_trait]
impl Check for Down {
    fn name(&self) -> &'static str {
        "a part"
    }

    async fn check(&self) -> anyhow::Result<()> {
        bail!("it is down")
    }
}

/// The same API over the same tickets, of which a part is down, and where nobody is an operator.
async fn unwell(world: &World) -> Serving {
    let database = world.database();
    Site::new(Health::of(vec![Box::new(Down)]))
        .with_tickets(Tickets::new(database.clone(), world.clock.clone()))
        .with_admin(Admin::new(database.operate(), None))
        .serve((Ipv4Addr::LOCALHOST, 0).into())
        .await
        .expect("it is served")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_is_one_that_the_document_describes_and_it_describes_no_other() {
    let world = World::new().await;
    let (anyone, operator) = (world.client.clone(), world.client.clone().token(TOKEN));
    let unwell = unwell(&world).await;
    let there = Client::at(unwell.address).token(TOKEN);
    world.embedded.mailbox.set_down(true);
    let (one, two) = (world.open_ticket().await, world.open_ticket().await);
    let (one, two) = (one.id.to_string(), two.id.to_string());
    let large = " ".repeat(2 * 1024 * 1024 + 1);
    let mut tour = Tour { document: document(), came: BTreeSet::new(), had: BTreeSet::new() };

    for query in ["", "?limit=1", "?limit=0"] {
        tour.ask(&anyone, Method::GET, TICKETS, query, "").await;
    }
    for body in [NEW, "{", r#"{"title": "", "requester": ""}"#, &large] {
        tour.ask(&anyone, Method::POST, TICKETS, "", body).await;
    }
    for id in [&*one, "%FF", "17"] {
        tour.ask(&anyone, Method::GET, TICKET, id, "").await;
    }
    tour.ask(&anyone, Method::PUT, STATUS, &one, BEGUN).await;
    tour.refusals(&anyone, STATUS, &one, BEGUN).await;
    tour.ask(&anyone, Method::PUT, ASSIGNEE, &two, BEN).await;
    tour.refusals(&anyone, ASSIGNEE, &two, BEN).await;
    for (client, path) in [
        (&anyone, "/health"),
        (&there, "/health"),
        (&anyone, "/metrics"),
        (&anyone, "/openapi.json"),
    ] {
        tour.ask(client, Method::GET, path, "", "").await;
    }

    let letter = eventually("a dead letter", async || {
        let letters = operator.get(LETTERS).await.expect("an answer").json().ok()?;
        Some(letters.get(0)?["number"].to_string())
    })
    .await;
    for client in [&operator, &anyone, &there] {
        tour.ask(client, Method::GET, LETTERS, "", "").await;
        tour.ask(client, Method::POST, REPLAY, &letter, "").await;
    }
    tour.ask(&operator, Method::POST, REPLAY, "0", "").await;
    tour.ask(&operator, Method::POST, REPLAY, "x", "").await;

    // Only inside of a process that shows its metrics itself.
    let elsewhere = ("GET".to_owned(), "/metrics".to_owned(), "404".to_owned());
    assert_eq!(tour.unseen(), (vec![elsewhere], Vec::new()));
    unwell.stop().await.expect("it stops");
}
