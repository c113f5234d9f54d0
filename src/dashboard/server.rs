//! The routes, and the process that serves them.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use actix_web::{
    App, HttpRequest, HttpResponse, HttpServer,
    body::{BoxBody, MessageBody},
    dev::{ServerHandle, ServiceRequest, ServiceResponse},
    error::InternalError,
    http::{
        ConnectionType, StatusCode,
        header::{HeaderName, HeaderValue},
    },
    middleware::{Next, from_fn},
    rt, web,
};
use serde::Deserialize;
use serde_json::json;

use super::{
    Commands, Error, PORT, Settings,
    answers::{self, Answer, Problem},
    assets::{ASSETS, PAGE, WELCOME},
    guard::{Guard, HEADERS, Pass},
    live, metrics,
    studies::{Studies, Watched},
};
use crate::{ids::TrialId, store::Runner};

/// The largest body of a request, in bytes.
const LARGEST: usize = 64 << 10;
/// Threads that answer, and how many connections each of them has at most. More of them wait outside: everybody on this machine can connect, and
/// a head needs its files for its trials. A browser has some for a page, and one that listens to events.
const WORKERS: usize = 2;
const CONNECTIONS: usize = 64;
/// How long a connection may take until it has said what it wants. Strangers that are silent make room for others then.
const SILENCE: Duration = Duration::from_secs(3);
/// Browsers listen to events until they are told to stop, so an orderly end need not wait for them.
const SHUTDOWN_S: u64 = 1;

/// A web server that listens, and does not answer yet.
pub(crate) struct Server {
    listener: TcpListener,
    address: SocketAddr,
    guard: Guard,
    studies: Arc<Studies>,
    actions: bool,
}

/// Whether Ctrl-C ends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signals {
    /// It does.
    Obeyed,
    /// Somebody else takes care of it.
    Ignored,
}

/// Ends a server from another thread.
#[derive(Debug)]
pub(crate) struct Stop(ServerHandle);

impl Stop {
    pub(super) fn now(self) {
        // Sent when it is called; nobody waits for the answer here, but for the thread.
        drop(self.0.stop(false));
    }
}

/// What all routes know.
struct Shared {
    studies: Arc<Studies>,
    actions: bool,
}

impl Server {
    /// Listens. There must be a study in each folder.
    pub(crate) fn bind(settings: &Settings, commands: Arc<dyn Commands>) -> Result<Self, Error> {
        let studies = Arc::new(Studies::new(&settings.folders, commands));
        let listen = |port| {
            let address = SocketAddr::new(settings.host, port);
            TcpListener::bind(address).map_err(|source| Error::Listen { address, source })
        };
        let listener = match settings.port {
            Some(port) => listen(port)?,
            None => listen(PORT).or_else(|_| listen(0))?,
        };
        let address = listener.local_addr().map_err(Error::Serve)?;
        let name = (!address.ip().is_loopback()).then(|| Runner::this().host);
        let guard = Guard::new(address.port(), name)?;
        Ok(Self { listener, address, guard, studies, actions: settings.actions })
    }

    /// Fails unless there is a study in each folder.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.studies.check()
    }

    /// Where a browser finds it, with the token.
    pub(crate) fn address(&self) -> String {
        let mut shown = self.address;
        if shown.ip().is_unspecified() {
            shown.set_ip(Ipv4Addr::LOCALHOST.into());
        }
        format!("http://{shown}/?token={}", self.guard.token())
    }

    /// Whether other machines can reach it.
    pub(crate) const fn is_public(&self) -> bool {
        !self.address.ip().is_loopback()
    }

    /// Answers until it is stopped.
    pub(crate) fn serve(self, signals: Signals, started: impl FnOnce(Stop)) -> Result<(), Error> {
        let Self { listener, guard, studies, actions, .. } = self;
        let shared = web::Data::new(Shared { studies, actions });
        let make = move || {
            App::new()
                .app_data(shared.clone())
                .app_data(web::Data::new(guard.clone()))
                .app_data(web::PayloadConfig::new(LARGEST))
                .wrap(from_fn(protect))
                .configure(routes)
        };
        let serve = async move {
            let server = HttpServer::new(make)
                .workers(WORKERS)
                .max_connections(CONNECTIONS)
                .client_request_timeout(SILENCE)
                .shutdown_timeout(SHUTDOWN_S)
                .listen(listener)?;
            let server = if signals == Signals::Ignored { server.disable_signals() } else { server };
            let server = server.run();
            started(Stop(server.handle()));
            server.await
        };
        rt::System::new().block_on(serve).map_err(Error::Serve)
    }
}

fn routes(config: &mut web::ServiceConfig) {
    config
        .route("/", web::get().to(page))
        .route("/assets/{name:.*}", web::get().to(asset))
        // Browsers ask for it, whatever a page says.
        .route("/favicon.ico", web::get().to(|| asset("icon.svg".to_owned().into())))
        .route("/events", web::get().to(events))
        .route("/metrics", web::get().to(metrics))
        .route("/api/studies", web::get().to(studies))
        .route("/api/compare", web::get().to(compare_studies))
        .route("/api/studies/{study}", web::get().to(overview))
        .route("/api/studies/{study}/history", web::get().to(history))
        .route("/api/studies/{study}/trials", web::get().to(trials))
        .route("/api/studies/{study}/running", web::get().to(running))
        .route("/api/studies/{study}/timeline", web::get().to(timeline))
        .route("/api/studies/{study}/analysis", web::get().to(analysis))
        .route("/api/studies/{study}/importance", web::get().to(importance))
        .route("/api/studies/{study}/compare", web::get().to(compare_trials))
        .route("/api/studies/{study}/nodes", web::get().to(nodes))
        .route("/api/studies/{study}/trials/{trial}", web::get().to(trial))
        .route("/api/studies/{study}/stop", web::post().to(stop))
        .route("/api/studies/{study}/pause", web::post().to(pause))
        .route("/api/studies/{study}/resume", web::post().to(resume))
        .route("/api/studies/{study}/enqueue", web::post().to(enqueue))
        .route("/api/studies/{study}/retry", web::post().to(retry))
        .route("/api/studies/{study}/trials/{trial}/stop", web::post().to(stop_trial))
        .default_service(web::to(|| async {
            Problem::Missing("there is no such page".to_owned()).response()
        }));
}

/// Refuses strangers, and puts on every answer what browsers are to keep to.
async fn protect(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, actix_web::Error> {
    let guard = request.app_data::<web::Data<Guard>>().cloned();
    let checked = guard.as_ref().map(|guard| guard.check(request.request()));
    let mut response = match (guard, checked) {
        (Some(guard), Some(Ok(Pass::Token))) => {
            let welcome = HttpResponse::Ok()
                .content_type("text/html; charset=utf-8")
                .cookie(guard.cookie())
                .body(WELCOME);
            request.into_response(welcome)
        }
        (Some(_), Some(Ok(Pass::Cookie | Pass::Header))) => next.call(request).await?.map_into_boxed_body(),
        (_, Some(Err(refusal))) => {
            let mut refused = request.into_response(refusal.response());
            // Its place is for others.
            refused.response_mut().head_mut().set_connection_type(ConnectionType::Close);
            refused
        }
        _ => request.into_response(HttpResponse::InternalServerError().finish()),
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    Ok(response)
}

async fn page() -> HttpResponse {
    HttpResponse::Ok().content_type("text/html; charset=utf-8").body(PAGE)
}

async fn asset(name: web::Path<String>) -> HttpResponse {
    match ASSETS.iter().find(|asset| asset.name == name.as_str()) {
        Some(asset) => HttpResponse::Ok().content_type(asset.kind).body(asset.bytes),
        None => Problem::Missing("there is no such file".to_owned()).response(),
    }
}

async fn events(shared: web::Data<Shared>) -> HttpResponse {
    live::events(shared.studies.clone())
}

async fn metrics(shared: web::Data<Shared>) -> HttpResponse {
    let text = web::block(move || {
        let commands = shared.studies.commands();
        let all = shared.studies.all();
        let samples: Vec<_> = all.iter().flat_map(|study| study.view(commands, metrics::of_study)).collect();
        metrics::text(&samples)
    });
    match text.await {
        Ok(text) => HttpResponse::Ok().content_type(metrics::CONTENT_TYPE).body(text),
        Err(_) => HttpResponse::ServiceUnavailable().finish(),
    }
}

impl Problem {
    fn response(self) -> HttpResponse {
        let (status, text) = match self {
            Self::Missing(text) => (StatusCode::NOT_FOUND, text),
            Self::Bad(text) => (StatusCode::BAD_REQUEST, text),
            Self::Refused(text) => (StatusCode::CONFLICT, text),
        };
        HttpResponse::build(status).json(json!({"error": text}))
    }
}

/// Lets the disk be read elsewhere than where connections are served.
async fn respond(answer: impl FnOnce() -> Answer + Send + 'static) -> HttpResponse {
    match web::block(answer).await {
        Ok(Ok(value)) => HttpResponse::Ok().json(value),
        Ok(Err(problem)) => problem.response(),
        Err(_) => HttpResponse::ServiceUnavailable().finish(),
    }
}

/// The parameters of an address.
fn query<T: for<'de> Deserialize<'de>>(request: &HttpRequest) -> Result<T, Problem> {
    let parsed = web::Query::<T>::from_query(request.query_string());
    parsed.map(web::Query::into_inner).map_err(|error| Problem::Bad(error.to_string()))
}

/// A question about one study.
async fn of_study<Q: for<'de> Deserialize<'de> + Send + 'static>(
    shared: web::Data<Shared>,
    key: String,
    request: HttpRequest,
    answer: impl FnOnce(&Shared, &Watched, Q) -> Answer + Send + 'static,
) -> HttpResponse {
    match query::<Q>(&request) {
        Ok(query) => respond(move || answer(&shared, &*find(&shared.studies, &key)?, query)).await,
        Err(problem) => problem.response(),
    }
}

fn find(studies: &Studies, key: &str) -> Result<Arc<Watched>, Problem> {
    studies.get(key).ok_or_else(|| Problem::Missing(format!("there is no study {key:?}")))
}

/// No parameters.
#[derive(Deserialize)]
struct Nothing {}

type Key = web::Path<String>;
type Data = web::Data<Shared>;

async fn studies(shared: Data) -> HttpResponse {
    respond(move || {
        let commands = shared.studies.commands();
        let rows = shared.studies.all().into_iter().map(|study| study.view(commands, answers::summary));
        Ok(json!({"studies": rows.collect::<Vec<_>>(), "actions": shared.actions}))
    })
    .await
}

async fn overview(shared: Data, key: Key, request: HttpRequest) -> HttpResponse {
    of_study(shared, key.into_inner(), request, |shared, study, Nothing {}| {
        let (commands, actions) = (shared.studies.commands(), shared.actions);
        Ok(study.view(commands, |view| answers::overview(view, commands, actions)))
    })
    .await
}

async fn history(shared: Data, key: Key, request: HttpRequest) -> HttpResponse {
    of_study(shared, key.into_inner(), request, |shared, study, query| {
        study.view(shared.studies.commands(), |view| answers::history(view, &query))
    })
    .await
}

async fn trials(shared: Data, key: Key, request: HttpRequest) -> HttpResponse {
    of_study(shared, key.into_inner(), request, |shared, study, query| {
        study.view(shared.studies.commands(), |view| answers::trials(view, &query))
    })
    .await
}

async fn running(shared: Data, key: Key, request: HttpRequest) -> HttpResponse {
    of_study(shared, key.into_inner(), request, |shared, study, Nothing {}| {
        Ok(study.view(shared.studies.commands(), answers::running))
    })
    .await
}

async fn timeline(shared: Data, key: Key, request: HttpRequest) -> HttpResponse {
    of_study(shared, key.into_inner(), request, |shared, study, query| {
        Ok(study.view(shared.studies.commands(), |view| answers::timeline(view, &query)))
    })
    .await
}

async fn analysis(shared: Data, key: Key, request: HttpRequest) -> HttpResponse {
    of_study(shared, key.into_inner(), request, |shared, study, Nothing {}| {
        Ok(study.view(shared.studies.commands(), answers::analysis))
    })
    .await
}

async fn importance(shared: Data, key: Key, request: HttpRequest) -> HttpResponse {
    of_study(shared, key.into_inner(), request, |shared, study, query| {
        answers::importance(study, shared.studies.commands(), &query)
    })
    .await
}

async fn compare_trials(shared: Data, key: Key, request: HttpRequest) -> HttpResponse {
    of_study(shared, key.into_inner(), request, |shared, study, query| {
        study.view(shared.studies.commands(), |view| answers::compare_trials(view, &query))
    })
    .await
}

async fn nodes(shared: Data, key: Key, request: HttpRequest) -> HttpResponse {
    of_study(shared, key.into_inner(), request, |shared, study, Nothing {}| {
        let commands = shared.studies.commands();
        Ok(study.view(
            commands,
            |view| json!({"nodes": commands.machines(&view.model.state), "running": view.is_run}),
        ))
    })
    .await
}

async fn trial(shared: Data, path: web::Path<(String, u32)>, request: HttpRequest) -> HttpResponse {
    let (key, trial) = path.into_inner();
    of_study(shared, key, request, move |shared, study, Nothing {}| {
        study.view(shared.studies.commands(), |view| answers::trial(view, TrialId(trial)))
    })
    .await
}

#[derive(Deserialize)]
struct Several {
    studies: String,
}

async fn compare_studies(shared: Data, request: HttpRequest) -> HttpResponse {
    let query: Several = match query(&request) {
        Ok(query) => query,
        Err(problem) => return problem.response(),
    };
    respond(move || {
        let keys = query.studies.split(',').filter(|key| !key.is_empty());
        let mut rows = Vec::new();
        for key in keys.take(answers::MAX_COMPARED) {
            rows.push(find(&shared.studies, key)?.view(shared.studies.commands(), answers::progress));
        }
        Ok(json!({"studies": rows}))
    })
    .await
}

/// Does something to a study, as the command line would.
async fn act(
    shared: Data,
    key: String,
    action: impl FnOnce(&dyn Commands, &Watched) -> Result<String, String> + Send + 'static,
) -> HttpResponse {
    respond(move || {
        if !shared.actions {
            return Err(Problem::Refused("this page only shows: it was started with --read-only".to_owned()));
        }
        let study = find(&shared.studies, &key)?;
        action(shared.studies.commands(), &study)
            .map_err(Problem::Refused)
            .map(|text| json!({"message": text}))
    })
    .await
}

async fn stop(shared: Data, key: Key) -> HttpResponse {
    act(shared, key.into_inner(), |commands, study| commands.stop(&study.folder)).await
}

async fn pause(shared: Data, key: Key) -> HttpResponse {
    act(shared, key.into_inner(), |commands, study| commands.pause(&study.folder)).await
}

async fn resume(shared: Data, key: Key) -> HttpResponse {
    act(shared, key.into_inner(), |commands, study| commands.unpause(&study.folder)).await
}

/// What to try, each value as it was typed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Enqueue {
    values: BTreeMap<String, String>,
}

async fn enqueue(shared: Data, key: Key, body: web::Bytes) -> Result<HttpResponse, actix_web::Error> {
    let Enqueue { values } = read(&body)?;
    let values: Vec<(String, String)> = values.into_iter().collect();
    Ok(act(shared, key.into_inner(), move |commands, study| commands.enqueue(&study.folder, &values)).await)
}

/// What a request brings.
fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, actix_web::Error> {
    serde_json::from_slice(body).map_err(|error| {
        let response = Problem::Bad(error.to_string()).response();
        InternalError::from_response(error, response).into()
    })
}

async fn stop_trial(shared: Data, path: web::Path<(String, u32)>) -> HttpResponse {
    let (key, trial) = path.into_inner();
    act(shared, key, move |commands, study| commands.stop_trial(&study.folder, TrialId(trial))).await
}

/// Which trials; all if there are none.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Retry {
    #[serde(default)]
    trials: Vec<u32>,
}

async fn retry(shared: Data, key: Key, body: web::Bytes) -> Result<HttpResponse, actix_web::Error> {
    let text: &[u8] = if body.is_empty() { b"{}" } else { &body };
    let Retry { trials } = read(text)?;
    let trials: Vec<TrialId> = trials.into_iter().map(TrialId).collect();
    Ok(act(shared, key.into_inner(), move |commands, study| commands.retry(&study.folder, &trials)).await)
}
