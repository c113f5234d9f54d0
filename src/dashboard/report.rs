//! The page of a study as one file, which needs neither the program nor a network: its scripts, and the answers to what they ask.

use std::{path::Path, sync::Arc};

use serde_json::{Map, Value, json};

use super::{
    Commands, Error,
    answers::{self, Answer, Which, Window},
    assets::{ASSETS, PAGE},
    studies::{Studies, View, Watched},
};
use crate::ids::TrialId;

/// The most trials that have a page of their own: the best ones, and then the first.
const TRIALS: usize = 200;

/// Nothing is loaded from anywhere, whatever the data say.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'";

/// The study in a folder as a page.
pub(crate) fn report(folder: &Path, commands: Arc<dyn Commands>) -> Result<String, Error> {
    let studies = Studies::new(&[folder.to_owned()], commands);
    let all = studies.all();
    let [study] = &all[..] else {
        let first = all.first().map(|study| study.folder.clone());
        let folder = folder.to_owned();
        return Err(first.map_or_else(
            || Error::NoStudy(folder.clone()),
            |first| Error::SeveralStudies { folder: folder.clone(), first },
        ));
    };
    Ok(page(&stored(study, studies.commands())))
}

/// All answers by their addresses, as `ask` in `web/common.js` looks them up.
fn stored(study: &Watched, commands: &dyn Commands) -> Value {
    let mut answers = Map::new();
    let home = format!("studies/{}", study.key);
    let objectives = study.view(commands, |view| {
        answers.insert("studies".to_owned(), json!({"studies": [answers::summary(view)], "actions": false}));
        answers.insert(home.clone(), answers::overview(view, commands, false));
        let whole = Window { from: None, to: None };
        answers.insert(format!("{home}/timeline"), answers::timeline(view, &whole));
        answers.insert(format!("{home}/analysis"), answers::analysis(view));
        for trial in chosen(view) {
            // What programs print may be long, and secret.
            if let Ok(mut answer) = answers::trial(view, trial) {
                for name in ["log", "log_cut", "log_file"] {
                    answer[name] = Value::Null;
                }
                answers.insert(format!("{home}/trials/{trial}"), answer);
            }
        }
        view.model.study.as_ref().map_or(0, |study| study.objectives.len())
    });
    for objective in 0..objectives {
        let which = Which { objective };
        let mut keep = |name: &str, answer: Answer| {
            if let Ok(answer) = answer {
                answers.insert(format!("{home}/{name}?objective={objective}"), answer);
            }
        };
        keep("history", study.view(commands, |view| answers::history(view, &which)));
        keep("importance", answers::importance(study, commands, &which));
    }
    answers.into()
}

/// The trials that have a page, in the order of their numbers.
fn chosen(view: &View<'_>) -> Vec<TrialId> {
    let best = answers::best_trials(view, TRIALS / 2);
    let mut chosen: Vec<TrialId> = view.model.ids().filter(|trial| !best.contains(trial)).collect();
    chosen.truncate(TRIALS - best.len());
    chosen.extend(best);
    chosen.sort_unstable();
    chosen
}

/// The page with all that it would load.
fn page(answers: &Value) -> String {
    // A browser resolves names like these in scripts that have no address, too.
    let inside = |script: &str| script.replace("\"/assets/", "\"pollux-tune/");
    let mut imports = Map::new();
    let (mut style, mut icon) = ("", String::new());
    for asset in ASSETS {
        let text = std::str::from_utf8(asset.bytes).unwrap_or_default();
        if asset.kind.starts_with("text/javascript") {
            let script = format!("data:text/javascript;base64,{}", base64(inside(text).as_bytes()));
            imports.insert(format!("pollux-tune/{}", asset.name), script.into());
        } else if asset.kind.starts_with("text/css") {
            style = text;
        } else {
            icon = format!("data:{};base64,{}", asset.kind, base64(asset.bytes));
        }
    }
    // In a script, only this ends the script.
    let plain = |value: &Value| value.to_string().replace('<', "\\u003c");
    let imports = plain(&json!({"imports": imports}));
    let answers = plain(answers);
    let scripts = format!(
        "<script type=\"application/json\" id=\"answers\">{answers}</script>\n\
         <script type=\"importmap\">{imports}</script>\n\
         <script type=\"module\">import \"pollux-tune/app.js\";</script>"
    );
    let policy = format!(
        "<meta charset=\"utf-8\">\n<meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">"
    );
    PAGE.replace("<meta charset=\"utf-8\">", &policy)
        .replace("href=\"/assets/icon.svg\"", &format!("href=\"{icon}\""))
        .replace("<link rel=\"stylesheet\" href=\"/assets/style.css\">", &format!("<style>{style}</style>"))
        .replace("<script type=\"module\" src=\"/assets/app.js\"></script>", &scripts)
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |place: usize| u32::from(chunk.get(place).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the RFC.
    #[test]
    fn base64_is_that_of_the_standard() {
        let encoded = ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|text| base64(text.as_bytes()));
        assert_eq!(encoded, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
    }

    #[test]
    fn the_page_has_all_that_it_loads() {
        let page = page(&json!({"studies": "</script><script>alert(1)</script>"}));
        assert!(!page.contains("/assets/"), "nothing is left that would be loaded");
        assert!(!page.contains("alert(1)</script>"), "data stay data");
        for asset in ASSETS.iter().filter(|asset| asset.kind.starts_with("text/javascript")) {
            assert!(page.contains(&format!("\"pollux-tune/{}\":\"data:", asset.name)), "{}", asset.name);
            let text = std::str::from_utf8(asset.bytes).expect("text");
            assert!(!text.contains("import(\""), "{}: the map knows only whole names", asset.name);
        }
        assert_eq!(page.matches("<style>").count(), 1);
    }
}
