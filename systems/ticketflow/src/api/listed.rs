use axum::Router;
use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{self, MethodRouter};

/// What a request may be: a method, and a path as the router writes it.
pub type Listed = (Method, &'static str);

/// Routes, and the list of them: nothing is served that is not in it.
pub(super) struct Routes<S = ()> {
    router: Router<S>,
    list: Vec<Listed>,
}

impl<S: Clone + Send + Sync + 'static> Routes<S> {
    pub(super) fn new() -> Self {
        Self { router: Router::new(), list: Vec::new() }
    }

    pub(super) fn get<T: 'static>(self, path: &'static str, handler: impl Handler<T, S>) -> Self {
        self.add(Method::GET, path, routing::get(handler))
    }

    pub(super) fn post<T: 'static>(self, path: &'static str, handler: impl Handler<T, S>) -> Self {
        self.add(Method::POST, path, routing::post(handler))
    }

    pub(super) fn put<T: 'static>(self, path: &'static str, handler: impl Handler<T, S>) -> Self {
        self.add(Method::PUT, path, routing::put(handler))
    }

    fn add(self, method: Method, path: &'static str, answers: MethodRouter<S>) -> Self {
        let Self { router, mut list } = self;
        list.push((method, path));
        Self { router: router.route(path, answers), list }
    }

    /// With something around all that is here so far.
    pub(super) fn within(self, wrap: impl FnOnce(Router<S>) -> Router<S>) -> Self {
        Self { router: wrap(self.router), list: self.list }
    }

    /// With what their handlers need.
    pub(super) fn over(self, state: S) -> Routes {
        Routes { router: self.router.with_state(state), list: self.list }
    }
}

impl Routes {
    pub(super) fn and(self, other: Self) -> Self {
        let Self { router, mut list } = self;
        list.extend(other.list);
        Self { router: router.merge(other.router), list }
    }

    pub(super) fn parts(self) -> (Router, Vec<Listed>) {
        (self.router, self.list)
    }
}
