use super::Place;
use axum::http::{Method, StatusCode};
use serde_json::Value;
use ticketflow::client::Answer;
use ticketflow::database::Database;
use ticketflow::ticket::{Status, Ticket};
use uuid::Uuid;

const TICKETS: &str = "/api/v1/tickets";
const ROWS: &str = r#"SELECT count(*) FROM "Tickets""#;
const EVENTS: &str = r#"SELECT count(*) FROM "Outbox""#;

pub(crate) fn assert_problem(answer: &Answer, status: StatusCode) -> Value {
    assert_eq!(answer.status, status, "{:?}", answer.body);
    assert_eq!(answer.content_type, "application/problem+json");
    let problem = answer.json().expect("JSON");
    assert_eq!(problem["status"], status.as_u16());
    assert!(!problem["detail"].as_str().unwrap_or_default().is_empty(), "{problem}");
    problem
}

impl Place<'_> {
    async fn refused(&self, method: Method, path: &str, body: &str, status: StatusCode) -> Value {
        let answer = self.client.ask(method, path, body.as_bytes().to_vec()).await;
        assert_problem(&answer.expect("an answer"), status)
    }

    /// Every page, each found by what the page before it said.
    async fn pages(&self, limit: usize) -> Vec<Vec<Ticket>> {
        let (mut pages, mut after) = (Vec::new(), String::new());
        loop {
            let path = format!("{TICKETS}?limit={limit}{after}");
            let mut page = self.client.get(&path).await.expect("an answer").json().expect("JSON");
            pages.push(serde_json::from_value(page["items"].take()).expect("tickets"));
            let Some(next) = page["next"].as_str() else { return pages };
            after = format!("&after={next}");
        }
    }
}

/// Whatever cannot be done is told as a problem, and has changed nothing.
pub(crate) async fn refusals(place: &Place<'_>) {
    let invalid = r#"{"title": " ", "requester": "nobody"}"#;
    let unprocessable = StatusCode::UNPROCESSABLE_ENTITY;
    let problem = place.refused(Method::POST, TICKETS, invalid, unprocessable).await;
    assert_eq!(problem["errors"].as_array().map(Vec::len), Some(2), "{problem}");

    let ticket = place.open_ticket().await;
    let of = |id: Uuid, what: &str| format!("{TICKETS}/{id}{what}");
    let (status, assignee) = (of(ticket.id, "/status"), of(ticket.id, "/assignee"));
    let nobody = Uuid::now_v7();
    let (none, no_status) = (of(nobody, ""), of(nobody, "/status"));
    let no_assignee = of(nobody, "/assignee");
    let unknown = r#"{"title": "t", "requester": "a@b.org", "colour": "red"}"#;
    let (lost, open) = (r#"{"status": "lost"}"#, r#"{"status": "open"}"#);
    let (closed, ben) = (r#"{"status": "closed"}"#, r#"{"assignee": "ben@example.org"}"#);
    // A byte more than is read at all.
    let large = &*" ".repeat(2 * 1024 * 1024 + 1);
    for (method, path, body, wanted) in [
        (Method::POST, TICKETS, "{", StatusCode::BAD_REQUEST),
        (Method::POST, TICKETS, unknown, unprocessable),
        (Method::GET, "/nowhere", "", StatusCode::NOT_FOUND),
        (Method::DELETE, TICKETS, "", StatusCode::METHOD_NOT_ALLOWED),
        (Method::GET, "/api/v1/tickets/17", "", StatusCode::NOT_FOUND),
        (Method::GET, &none, "", StatusCode::NOT_FOUND),
        (Method::GET, "/api/v1/tickets?limit=0", "", unprocessable),
        (Method::PUT, &no_status, closed, StatusCode::NOT_FOUND),
        (Method::PUT, &no_assignee, ben, StatusCode::NOT_FOUND),
        (Method::PUT, &status, lost, unprocessable),
        (Method::PUT, &status, open, StatusCode::CONFLICT),
        (Method::PUT, &assignee, r#"{"assignee": "ben"}"#, unprocessable),
        (Method::POST, TICKETS, large, StatusCode::PAYLOAD_TOO_LARGE),
        (Method::PUT, &status, large, StatusCode::PAYLOAD_TOO_LARGE),
        (Method::PUT, &assignee, large, StatusCode::PAYLOAD_TOO_LARGE),
        (Method::GET, "/api/v1/tickets/%FF", "", StatusCode::BAD_REQUEST),
        (Method::PUT, "/api/v1/tickets/%FF/status", closed, StatusCode::BAD_REQUEST),
        (Method::PUT, "/api/v1/tickets/%FF/assignee", ben, StatusCode::BAD_REQUEST),
    ] {
        place.refused(method, path, body, wanted).await;
    }
    let shown = place.client.show(ticket.id).await.expect("shown");
    assert_eq!(shown, ticket, "a refusal changes nothing");
    assert_eq!(place.count(EVENTS).await, 1, "and tells nobody");

    place.client.assign(ticket.id, "ben@example.org").await.expect("assigned");
    place.refused(Method::PUT, &assignee, ben, StatusCode::CONFLICT).await;
    place.client.change_status(ticket.id, Status::Closed).await.expect("changed");
    place.refused(Method::PUT, &status, open, StatusCode::CONFLICT).await;
    let eva = r#"{"assignee": "eva@example.org"}"#;
    place.refused(Method::PUT, &assignee, eva, StatusCode::CONFLICT).await;
    assert_eq!(place.client.show(ticket.id).await.expect("shown").version, 3);
    assert_eq!(place.count(EVENTS).await, 3, "of what was accepted");
}

/// A ticket is what its last change has made of it, to the microsecond.
pub(crate) async fn changes_are_shown(place: &Place<'_>) {
    let opened = place.open_ticket().await;
    assert_eq!(place.client.show(opened.id).await.expect("shown"), opened);
    let begun = place.client.change_status(opened.id, Status::InProgress).await.expect("changed");
    assert_eq!(place.client.show(opened.id).await.expect("shown"), begun);
    let assigned = place.client.assign(opened.id, "ben@example.org").await.expect("assigned");
    assert_eq!(place.client.show(opened.id).await.expect("shown"), assigned);
    assert!(opened.updated_at < begun.updated_at && begun.updated_at < assigned.updated_at);
    let wanted = Ticket {
        status: Status::InProgress,
        assignee: Some("ben@example.org".into()),
        version: 3,
        updated_at: assigned.updated_at,
        ..opened
    };
    assert_eq!(assigned, wanted, "and nothing else has changed");
}

/// Every ticket is on one page, newest first; those of one moment in the order of their ids.
pub(crate) async fn pages(place: &Place<'_>) {
    const OF_ONE_MOMENT: &str =
        r#"UPDATE "Tickets" SET "CreatedAt" = (SELECT min("CreatedAt") FROM "Tickets")"#;
    let mut opened = Vec::new();
    for _ in 0..7 {
        opened.push(place.open_ticket().await);
    }
    opened.reverse();
    let pages = place.pages(3).await;
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3, 1]);
    assert_eq!(pages.concat(), opened);

    place.say(OF_ONE_MOMENT).await;
    let ids = |tickets: &[Ticket]| tickets.iter().map(|it| it.id).collect::<Vec<Uuid>>();
    let mut wanted = ids(&opened);
    wanted.sort_unstable_by(|one, other| other.cmp(one));
    assert_eq!(ids(&place.pages(3).await.concat()), wanted);
}

/// What makes a change fail when its event is written, and when both are to commit; and what ends that.
fn faults(database: &Database) -> [[&'static str; 2]; 2] {
    match database {
        Database::Sqlite(..) => [
            [
                r#"CREATE TRIGGER refused BEFORE INSERT ON "Outbox" BEGIN SELECT RAISE(ABORT, 'refused'); END"#,
                "DROP TRIGGER refused",
            ],
            [
                r#"CREATE TABLE nowhere (id integer PRIMARY KEY);
                CREATE TABLE astray (id integer REFERENCES nowhere DEFERRABLE INITIALLY DEFERRED);
                CREATE TRIGGER refused AFTER INSERT ON "Outbox" BEGIN INSERT INTO astray VALUES (1); END"#,
                "DROP TRIGGER refused",
            ],
        ],
        Database::Postgres(_) => [
            [
                r#"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$;
                CREATE TRIGGER refused BEFORE INSERT ON "Outbox" FOR EACH ROW EXECUTE FUNCTION refuse()"#,
                r#"DROP TRIGGER refused ON "Outbox""#,
            ],
            [
                r#"CREATE CONSTRAINT TRIGGER refused AFTER INSERT ON "Outbox" DEFERRABLE INITIALLY DEFERRED
                FOR EACH ROW EXECUTE FUNCTION refuse()"#,
                r#"DROP TRIGGER refused ON "Outbox""#,
            ],
        ],
    }
}

/// Whatever fails in a change's transaction, neither the ticket nor its event is there.
pub(crate) async fn one_transaction(place: &Place<'_>) {
    let ticket = place.open_ticket().await;
    let (status, assignee) =
        (format!("{TICKETS}/{}/status", ticket.id), format!("{TICKETS}/{}/assignee", ticket.id));
    for [fault, mended] in faults(place.database) {
        place.say(fault).await;
        for (method, path, body) in [
            (Method::POST, TICKETS, r#"{"title": "t", "requester": "a@b.org"}"#),
            (Method::PUT, &assignee, r#"{"assignee": "ben@example.org"}"#),
            (Method::PUT, &status, r#"{"status": "closed"}"#),
        ] {
            place.refused(method, path, body, StatusCode::INTERNAL_SERVER_ERROR).await;
        }
        assert_eq!(place.count(ROWS).await, 1, "no ticket without its event: {fault}");
        let shown = place.client.show(ticket.id).await.expect("shown");
        assert_eq!(shown, ticket, "no change without its event: {fault}");
        assert_eq!(place.count(EVENTS).await, 1, "no event without its change: {fault}");
        place.say(mended).await;
    }
    place.client.change_status(ticket.id, Status::Closed).await.expect("changed");
    assert_eq!((place.count(ROWS).await, place.count(EVENTS).await), (1, 2));
}
