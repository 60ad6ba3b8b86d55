use super::Api;
use super::problem::{Body, InPath, Problem};
use super::query::{asked, limit};
use crate::events::Governance;
use crate::tenants::{Changed, Tenant};
use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use chrono::{DateTime, Utc};
use serde::Deserialize;

type Answer<T> = Result<T, Problem>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Named {
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct User {
    email: String,
    role: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Assembly {
    title: String,
    scheduled_for: DateTime<Utc>,
}

pub(super) async fn create(
    State(api): State<Api>,
    Body(Named { name }): Body<Named>,
) -> Answer<(StatusCode, Json<Changed>)> {
    Ok((StatusCode::CREATED, Json(api.tenants.create(&name).await?)))
}

pub(super) async fn list(
    State(api): State<Api>,
    RawQuery(query): RawQuery,
) -> Answer<Json<Vec<Tenant>>> {
    let (after, limit) = (asked(&query, "after"), limit(&query, 50)?);
    Ok(Json(api.tenants.list(after, limit).await?))
}

pub(super) async fn show(State(api): State<Api>, InPath(id): InPath) -> Answer<Json<Tenant>> {
    Ok(Json(api.tenants.show(&id).await?))
}

pub(super) async fn rename(
    State(api): State<Api>,
    InPath(id): InPath,
    Body(Named { name }): Body<Named>,
) -> Answer<Json<Changed>> {
    Ok(Json(api.tenants.rename(&id, &name).await?))
}

pub(super) async fn govern(
    State(api): State<Api>,
    InPath(id): InPath,
    Body(governance): Body<Governance>,
) -> Answer<Json<Changed>> {
    Ok(Json(api.tenants.change_governance(&id, governance).await?))
}

pub(super) async fn add_user(
    State(api): State<Api>,
    InPath(id): InPath,
    Body(User { email, role }): Body<User>,
) -> Answer<(StatusCode, Json<Changed>)> {
    Ok((StatusCode::CREATED, Json(api.tenants.add_user(&id, &email, &role).await?)))
}

pub(super) async fn schedule(
    State(api): State<Api>,
    InPath(id): InPath,
    Body(Assembly { title, scheduled_for }): Body<Assembly>,
) -> Answer<(StatusCode, Json<Changed>)> {
    let changed = api.tenants.schedule_assembly(&id, &title, scheduled_for).await?;
    Ok((StatusCode::CREATED, Json(changed)))
}
