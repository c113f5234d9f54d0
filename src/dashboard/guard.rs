//! Who is heard: browsers that know the token, asked for by this page alone.

use std::net::{IpAddr, Ipv6Addr};

use actix_web::{
    HttpRequest, HttpResponse,
    cookie::{Cookie, SameSite},
    http::{
        Method, StatusCode,
        header::{self, HeaderMap},
        uri::Authority,
    },
};

use crate::wire::{self, Secret};

/// Sent by the scripts of the page with what changes something: another site cannot, without asking first.
pub(super) const ACTION_HEADER: &str = "x-pollux-tune";

/// The token, for those who have no `authorization` to spare.
pub(super) const TOKEN_HEADER: &str = "x-pollux-tune-token";

/// No inline scripts, nothing from elsewhere, and no frame around it.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Sent with every answer.
pub(super) const HEADERS: [(&str, &str); 6] = [
    ("content-security-policy", CONTENT_SECURITY_POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
];

/// Decides who is heard.
#[derive(Clone)]
pub(super) struct Guard {
    token: Secret,
    cookie: String,
    /// A name of this machine by which it may be called, besides its addresses.
    name: Option<String>,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Another name than ours: perhaps a page from elsewhere whose name was made to point here.
    Host,
    /// Neither the token nor the cookie.
    Token,
    /// By a page from elsewhere.
    CrossSite,
}

/// What a request has shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    /// The cookie.
    Cookie,
    /// The token in the address: the browser gets its cookie.
    Token,
    /// The token in a header, as programs have it. Another site cannot make a browser send that.
    Header,
}

impl Guard {
    /// With a new token. Cookies are the same for all ports of a machine, so they are named by the port.
    pub(super) fn new(port: u16, name: Option<String>) -> Result<Self, wire::Error> {
        let name = name.map(|name| name.to_ascii_lowercase());
        Ok(Self { token: Secret::random()?, cookie: format!("pollux-tune-{port}"), name })
    }

    pub(super) fn token(&self) -> &str {
        self.token.reveal()
    }

    /// Whether a request is heard.
    pub(super) fn check(&self, request: &HttpRequest) -> Result<Pass, Refusal> {
        let headers = request.headers();
        let host = text(headers, header::HOST).or_else(|| request.uri().authority().map(Authority::as_str));
        if !host.is_some_and(|host| self.is_ours(host)) {
            return Err(Refusal::Host);
        }
        let pass = self.pass(request)?;
        if request.method() != Method::GET {
            let origin = text(headers, header::ORIGIN);
            let same = |origin: &str| Some(origin.trim_start_matches("http://")) == host;
            let site = text(headers, header::HeaderName::from_static("sec-fetch-site"));
            let ours = headers.contains_key(ACTION_HEADER)
                && origin.is_none_or(same)
                && site.is_none_or(|site| site == "same-origin");
            if !ours || pass != Pass::Cookie {
                return Err(Refusal::CrossSite);
            }
        }
        Ok(pass)
    }

    fn pass(&self, request: &HttpRequest) -> Result<Pass, Refusal> {
        let is_token = |text: &str| self.token.is(text.as_bytes());
        let mut pairs = request.query_string().split('&');
        let given = pairs.find_map(|pair| pair.strip_prefix("token="));
        let is_page = request.method() == Method::GET && request.path() == "/";
        // Before the cookie: the token is to vanish from the address in any case.
        if is_page && given.is_some_and(is_token) {
            return Ok(Pass::Token);
        }
        if request.cookie(&self.cookie).is_some_and(|cookie| is_token(cookie.value())) {
            return Ok(Pass::Cookie);
        }
        let headers = request.headers();
        let bearer = text(headers, header::AUTHORIZATION).and_then(|given| given.strip_prefix("Bearer "));
        let own = text(headers, header::HeaderName::from_static(TOKEN_HEADER));
        if bearer.or(own).is_some_and(is_token) {
            return Ok(Pass::Header);
        }
        Err(Refusal::Token)
    }

    /// A name cannot be trusted, since whoever owns it says where it points; an address can.
    fn is_ours(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
            _ => host,
        };
        let name = name.to_ascii_lowercase();
        let is_v6 = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        is_v6.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok())
            || name.parse::<IpAddr>().is_ok()
            || name == "localhost"
            || self.name.as_ref() == Some(&name)
    }

    /// What a browser keeps: scripts cannot read it, and other sites cannot use it.
    pub(super) fn cookie(&self) -> Cookie<'static> {
        Cookie::build(self.cookie.clone(), self.token().to_owned())
            .path("/")
            .http_only(true)
            .same_site(SameSite::Strict)
            .finish()
    }
}

impl Refusal {
    pub(super) fn response(self) -> HttpResponse {
        let text = match self {
            Self::Host => "this name is not one of this machine: use the address that pollux-tune printed\n",
            Self::Token => "the token is missing or wrong: open the address that pollux-tune printed\n",
            Self::CrossSite => "only the page itself may do this\n",
        };
        HttpResponse::build(StatusCode::FORBIDDEN).content_type("text/plain; charset=utf-8").body(text)
    }
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    fn guard() -> Guard {
        Guard::new(8787, Some("Head1".to_owned())).expect("there is randomness")
    }

    fn get(path: &str, host: &str) -> TestRequest {
        TestRequest::get().uri(path).insert_header((header::HOST, host.to_owned()))
    }

    #[test]
    fn only_names_of_this_machine_are_heard() {
        let guard = guard();
        for ours in [
            "127.0.0.1:8787",
            "localhost:8787",
            "localhost",
            "[::1]:8787",
            "10.0.0.7:80",
            "head1:8787",
            "HEAD1",
        ] {
            assert_eq!(guard.check(&get("/", ours).to_http_request()), Err(Refusal::Token), "{ours}");
        }
        for other in ["evil.example:8787", "127.0.0.1.evil.example", "localhost.evil", "head2", "[x]:1", ""] {
            let path = format!("/?token={}", guard.token());
            assert_eq!(guard.check(&get(&path, other).to_http_request()), Err(Refusal::Host), "{other}");
        }
    }

    #[test]
    fn the_token_opens_the_page_and_the_cookie_the_rest() {
        let guard = guard();
        let here = "127.0.0.1:8787";
        let with_token = |path: &str| get(&format!("{path}?token={}", guard.token()), here).to_http_request();
        assert_eq!(guard.check(&with_token("/")), Ok(Pass::Token));
        assert_eq!(guard.check(&with_token("/api/studies")), Err(Refusal::Token));
        let other = Guard::new(8787, None).expect("there is randomness");
        let wrong = get(&format!("/?token={}", other.token()), here).to_http_request();
        assert_eq!(guard.check(&wrong), Err(Refusal::Token));
        let request = get("/api/studies", here).cookie(guard.cookie());
        assert_eq!(guard.check(&request.to_http_request()), Ok(Pass::Cookie));
        let request = get("/api/studies", here).cookie(other.cookie());
        assert_eq!(guard.check(&request.to_http_request()), Err(Refusal::Token));
    }

    #[test]
    fn programs_show_the_token_in_a_header_and_only_look() {
        let guard = guard();
        let bearer = format!("Bearer {}", guard.token());
        let check = |request: TestRequest| guard.check(&request.to_http_request());
        let look = || get("/metrics", "127.0.0.1:8787");
        assert_eq!(check(look().insert_header((header::AUTHORIZATION, bearer.clone()))), Ok(Pass::Header));
        assert_eq!(check(look().insert_header((TOKEN_HEADER, guard.token().to_owned()))), Ok(Pass::Header));
        let wrong = look().insert_header((header::AUTHORIZATION, "Bearer 0123".to_owned()));
        assert_eq!(check(wrong), Err(Refusal::Token));
        let act =
            TestRequest::post().uri("/api/studies/a/stop").insert_header((header::HOST, "127.0.0.1:8787"));
        let act = act.insert_header((header::AUTHORIZATION, bearer)).insert_header((ACTION_HEADER, "1"));
        assert_eq!(check(act), Err(Refusal::CrossSite), "what changes something is for the page");
    }

    #[test]
    fn what_changes_something_comes_from_the_page() {
        let guard = guard();
        let here = "127.0.0.1:8787";
        let post = || {
            TestRequest::post()
                .uri("/api/studies/a/stop")
                .insert_header((header::HOST, here))
                .cookie(guard.cookie())
        };
        let check = |request: TestRequest| guard.check(&request.to_http_request());
        assert_eq!(check(post()), Err(Refusal::CrossSite), "without the header");
        let ours = || post().insert_header((ACTION_HEADER, "1"));
        assert_eq!(check(ours()), Ok(Pass::Cookie));
        assert_eq!(check(ours().insert_header((header::ORIGIN, "http://127.0.0.1:8787"))), Ok(Pass::Cookie));
        for origin in ["http://127.0.0.1:9999", "https://evil.example", "null"] {
            let request = ours().insert_header((header::ORIGIN, origin));
            assert_eq!(check(request), Err(Refusal::CrossSite), "{origin}");
        }
        assert_eq!(check(ours().insert_header(("sec-fetch-site", "cross-site"))), Err(Refusal::CrossSite));
        assert_eq!(check(ours().insert_header(("sec-fetch-site", "same-site"))), Err(Refusal::CrossSite));
    }
}
