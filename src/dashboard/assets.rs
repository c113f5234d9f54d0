//! What a page is made of, embedded into the program.

/// A file for browsers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asset {
    /// Its path below `/assets/`.
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    pub(super) bytes: &'static [u8],
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! assets {
    ($($name:literal $kind:expr),* $(,)?) => {
        &[$(Asset { name: $name, kind: $kind, bytes: include_bytes!(concat!("web/", $name)) }),*]
    };
}

/// The page itself.
pub(super) const PAGE: &str = include_str!("web/index.html");

/// Everything that it loads.
pub(super) const ASSETS: &[Asset] = assets![
    "style.css" "text/css; charset=utf-8",
    "icon.svg" "image/svg+xml",
    "app.js" SCRIPT,
    "charts.js" SCRIPT,
    "common.js" SCRIPT,
    "views/analysis.js" SCRIPT,
    "views/compare.js" SCRIPT,
    "views/nodes.js" SCRIPT,
    "views/overview.js" SCRIPT,
    "views/running.js" SCRIPT,
    "views/studies.js" SCRIPT,
    "views/timeline.js" SCRIPT,
    "views/trial.js" SCRIPT,
    "views/trials.js" SCRIPT,
    "vendor/echarts.js" SCRIPT,
];

/// Where a browser goes once it has its cookie: without the token in its address.
pub(super) const WELCOME: &str = "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>pollux-tune</title>\
     <link rel=\"icon\" href=\"/assets/icon.svg\">\
     <meta http-equiv=\"refresh\" content=\"0;url=/\"></head><body><a href=\"/\">Open the dashboard</a></body></html>";
