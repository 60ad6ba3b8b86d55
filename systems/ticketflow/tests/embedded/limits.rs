//! What the OpenAPI document lets people ask is what the API takes, to the last character, and nothing beyond it.

use crate::common::requests::assert_problem;
use crate::document::document;
use crate::world::World;
use axum::http::{Method, StatusCode};
use serde_json::{Value, json};
use ticketflow::client::Answer;
use ticketflow::ticket::{Priority, Status, Ticket};

const TICKETS: &str = "/api/v1/tickets";
const UNPROCESSABLE: StatusCode = StatusCode::UNPROCESSABLE_ENTITY;

fn schema(name: &str) -> Value {
    document()["components"]["schemas"][name].clone()
}

fn new_ticket() -> Value {
    json!({ "title": "t", "description": "d", "requester": "ana@example.org", "priority": "high" })
}

/// The same with a field that is different.
fn with(body: &Value, field: &str, value: impl Into<Value>) -> Value {
    let mut body = body.clone();
    body[field] = value.into();
    body
}

/// An e-mail address of so many characters, about 250. Each part of it is as long as it may be, but the one that makes up
/// the length.
fn address(length: usize) -> String {
    let [before, label] = ["a".repeat(64), "b".repeat(63)];
    let fixed = format!("{before}@{label}.{label}..org").len();
    format!("{before}@{label}.{label}.{}.org", "c".repeat(length - fixed))
}

/// What a property may be at its longest, and a character more.
fn longest(property: &Value) -> Option<[String; 2]> {
    let most = property["maxLength"].as_u64()? as usize;
    let text = |length| match property["format"].as_str() {
        Some("email") => address(length),
        _ => "x".repeat(length),
    };
    let texts = [text(most), text(most + 1)];
    assert_eq!(texts.each_ref().map(String::len), [most, most + 1]);
    Some(texts)
}

impl World {
    async fn create(&self, body: &Value) -> Answer {
        self.send(Method::POST, TICKETS, body).await
    }

    async fn send(&self, method: Method, path: &str, body: &Value) -> Answer {
        let body = body.to_string().into_bytes();
        self.client.ask(method, path, body).await.expect("an answer")
    }

    async fn page(&self, query: &str) -> Answer {
        self.client.get(&format!("{TICKETS}?{query}")).await.expect("an answer")
    }
}

/// A field was refused, and no other.
fn assert_invalid(answer: &Answer, field: &str) {
    let problem = assert_problem(answer, UNPROCESSABLE);
    assert_eq!(problem["errors"].as_array().map(Vec::len), Some(1), "{problem}");
    assert_eq!(problem["errors"][0]["field"], field, "{problem}");
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_may_be_as_long_as_the_document_says_and_no_longer() {
    let world = World::new().await;
    let (new, assign) = (schema("NewTicket"), schema("Assign"));
    let mut limited = Vec::new();
    for (field, property) in new["properties"].as_object().expect("properties") {
        let Some([longest, longer]) = longest(property) else { continue };
        let taken = world.create(&with(&new_ticket(), field, &*longest)).await;
        assert_eq!(taken.status, StatusCode::CREATED, "{field}: {taken:?}");
        assert_eq!(taken.json().expect("JSON")[field], *longest, "none of it is cut off");
        assert_invalid(&world.create(&with(&new_ticket(), field, &*longer)).await, field);
        limited.push(&**field);
    }
    limited.sort_unstable();
    assert_eq!(limited, ["description", "requester", "title"]);
    assert_eq!(new["properties"]["title"]["minLength"], 1);
    assert_invalid(&world.create(&with(&new_ticket(), "title", "")).await, "title");

    let ticket = world.open_ticket().await;
    let path = format!("{TICKETS}/{}/assignee", ticket.id);
    let [longest, longer] = longest(&assign["properties"]["assignee"]).expect("a limit");
    let refused = world.send(Method::PUT, &path, &json!({ "assignee": longer })).await;
    assert_invalid(&refused, "assignee");
    let taken = world.send(Method::PUT, &path, &json!({ "assignee": longest })).await;
    assert_eq!(taken.status, StatusCode::OK, "{taken:?}");

    let header = &document()["paths"][TICKETS]["post"]["parameters"][0];
    assert_eq!(header["name"], "x-correlation-id");
    let longest = "c".repeat(header["schema"]["maxLength"].as_u64().expect("a limit") as usize);
    for (id, status) in
        [(longest.clone(), StatusCode::CREATED), (longest + "c", StatusCode::BAD_REQUEST)]
    {
        let client = world.client.clone().correlation(&id);
        let body = new_ticket().to_string().into_bytes();
        let answer = client.ask(Method::POST, TICKETS, body).await.expect("an answer");
        assert_eq!(answer.status, status, "{} characters", id.len());
    }
}

/// What each field may be, and which may be left out.
#[tokio::test(flavor = "multi_thread")]
async fn fields_are_those_of_the_document_and_only_what_it_requires_is_needed() {
    let world = World::new().await;
    let new = schema("NewTicket");
    let required = new["required"].as_array().expect("names");
    for field in new["properties"].as_object().expect("properties").keys() {
        let mut without = new_ticket();
        without.as_object_mut().expect("an object").remove(field);
        let wanted = match required.contains(&field.as_str().into()) {
            true => UNPROCESSABLE,
            false => StatusCode::CREATED,
        };
        assert_eq!(world.create(&without).await.status, wanted, "without {field}");
    }
    let ticket = world.open_ticket().await;
    let of = |what: &str| format!("{TICKETS}/{}/{what}", ticket.id);
    for (name, method, path, body) in [
        ("NewTicket", Method::POST, TICKETS.to_owned(), new_ticket()),
        ("ChangeStatus", Method::PUT, of("status"), json!({ "status": "closed" })),
        ("Assign", Method::PUT, of("assignee"), json!({ "assignee": "ben@example.org" })),
    ] {
        assert_eq!(schema(name)["additionalProperties"], false, "{name}");
        for odd in [with(&body, "colour", "red"), json!({})] {
            let answer = world.send(method.clone(), &path, &odd).await;
            assert_problem(&answer, UNPROCESSABLE);
        }
    }
    assert_eq!(world.client.show(ticket.id).await.expect("shown"), ticket);

    let priorities = [Priority::Low, Priority::Normal, Priority::High].map(Priority::as_str);
    assert_eq!(schema("Priority")["enum"], json!(priorities));
    for priority in priorities {
        let created = world.create(&with(&new_ticket(), "priority", priority)).await;
        assert_eq!(created.json().expect("JSON")["priority"], priority);
    }
    assert_problem(&world.create(&with(&new_ticket(), "priority", "none")).await, UNPROCESSABLE);
    let least = json!({ "title": "t", "requester": "ana@example.org" });
    let created = world.create(&least).await.json().expect("JSON");
    assert_eq!(created["priority"], schema("Priority")["default"]);

    assert_eq!(schema("Status")["enum"], json!(Status::ALL.map(Status::as_str)));
    for status in ["in_progress", "open", "resolved", "closed"] {
        let changed = world.send(Method::PUT, &of("status"), &json!({ "status": status })).await;
        assert_eq!(changed.json().expect("JSON")["status"], status, "{changed:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_has_as_many_tickets_as_the_document_says() {
    let mut world = World::new().await;
    // Nobody is to be told: here are only pages.
    world.embedded.stop_dispatcher().await.expect("it stops");
    let parameter = document()["paths"][TICKETS]["get"]["parameters"][0].clone();
    assert_eq!(parameter["name"], "limit");
    let number = |name: &str| parameter["schema"][name].as_u64().expect(name) as usize;
    let (least, most, usual) = (number("minimum"), number("maximum"), number("default"));
    assert!(least < usual && usual < most, "{parameter}");
    for _ in 0..=most {
        world.open_ticket().await;
    }
    let limit = |n: usize| format!("limit={n}");
    for (query, tickets) in [(limit(least), least), (limit(most), most), (String::new(), usual)] {
        let mut page = world.page(&query).await.json().expect("JSON");
        let items: Vec<Ticket> = serde_json::from_value(page["items"].take()).expect("tickets");
        assert_eq!(items.len(), tickets, "{query}");
        assert!(page["next"].is_string(), "{page}");
    }
    for beyond in [least - 1, most + 1] {
        assert_invalid(&world.page(&limit(beyond)).await, "limit");
    }
}
