//! Tells browsers which studies have changed, as server-sent events.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use actix_web::{HttpResponse, rt, web};
use serde_json::json;
use tokio::{sync::mpsc, time};
use tokio_stream::wrappers::ReceiverStream;

use super::studies::Studies;

/// How often it is looked for changes.
const INTERVAL: Duration = Duration::from_millis(500);
/// After so many looks without a change something is sent all the same: so it is known which browsers are gone.
const QUIET_LOOKS: u32 = 30;

type Versions = BTreeMap<String, (u64, bool)>;

/// Events for as long as the browser listens.
pub(super) fn events(studies: Arc<Studies>) -> HttpResponse {
    let (send, receive) = mpsc::channel::<Result<web::Bytes, Infallible>>(16);
    rt::spawn(async move {
        let mut seen: Option<Versions> = None;
        let mut quiet = 0;
        let mut looks = time::interval(INTERVAL);
        looks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = looks.tick() => {}
                () = send.closed() => return,
            }
            let looked_at = studies.clone();
            let Ok(now) = web::block(move || versions(&looked_at)).await else { return };
            let text = message(seen.as_ref(), &now);
            seen = Some(now);
            quiet += 1;
            let text = match text {
                Some(text) => text,
                None if quiet >= QUIET_LOOKS => ": still here\n\n".to_owned(),
                None => continue,
            };
            quiet = 0;
            if send.send(Ok(text.into())).await.is_err() {
                return;
            }
        }
    });
    HttpResponse::Ok().content_type("text/event-stream").streaming(ReceiverStream::new(receive))
}

fn versions(studies: &Studies) -> Versions {
    studies.all().into_iter().map(|study| (study.key.clone(), study.version())).collect()
}

/// Which studies have changed since the last look; the first message names all.
fn message(before: Option<&Versions>, now: &Versions) -> Option<String> {
    let changed = |(key, version): &(&String, &(u64, bool))| {
        before.is_none_or(|before| before.get(*key) != Some(*version))
    };
    let changes: Vec<_> = now
        .iter()
        .filter(changed)
        .map(|(key, (facts, is_run))| json!({"study": key, "facts": facts, "running": is_run}))
        .collect();
    (before.is_none() || !changes.is_empty()).then(|| format!("event: change\ndata: {}\n\n", json!(changes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_changed_is_told() {
        let at = |versions: &[(&str, u64, bool)]| -> Versions {
            versions.iter().map(|(key, facts, is_run)| ((*key).to_owned(), (*facts, *is_run))).collect()
        };
        let (first, second) =
            (at(&[("a", 1, true), ("b", 2, false)]), at(&[("a", 5, true), ("b", 2, false)]));
        assert!(message(None, &first).is_some_and(|text| text.contains("\"a\"") && text.contains("\"b\"")));
        assert_eq!(message(Some(&first), &first), None);
        let text = message(Some(&first), &second).expect("one has changed");
        assert_eq!(text, "event: change\ndata: [{\"facts\":5,\"running\":true,\"study\":\"a\"}]\n\n");
        assert!(message(Some(&first), &at(&[("a", 1, false), ("b", 2, false)])).is_some(), "it was stopped");
    }
}
