//! What a study can learn from earlier ones: studies of ours, journals of earlier versions, and databases of Optuna.

use std::{
    collections::BTreeMap,
    io::Write,
    path::{Path, PathBuf},
};

use serde_json::Value as Json;
use thiserror::Error;

use super::{output::pluralize, results};
use crate::{
    cli,
    space::{Direction, Params, Space, Study, Value},
    store::{self, OptunaParam, OptunaStudy, OptunaTrial, Reader},
    trials::{End, Search, State},
};

/// So many different reasons are named.
const REASONS: usize = 3;

/// What can be wrong with an earlier study.
#[derive(Debug, Error)]
pub(crate) enum Error {
    #[error("{} has other objectives ({theirs}) than this study ({ours}): nothing can be learned from it", .path.display())]
    OtherObjectives { path: PathBuf, theirs: String, ours: String },
    #[error("{} has no study `{name}`; expected one of {}", .path.display(), .known.join(", "))]
    NoSuchStudy { path: PathBuf, name: String, known: Vec<String> },
    #[error("{} has several studies: choose one of them, as in {}#{}; there are {}",
        .path.display(), .path.display(), .known[0], .known.join(", "))]
    SeveralStudies { path: PathBuf, known: Vec<String> },
    #[error("{} has no study", .0.display())]
    NoStudy(PathBuf),
    #[error("{} cannot be read as a database of Optuna", .path.display())]
    NotOptuna { path: PathBuf, source: Box<store::Error> },
}

/// An earlier study.
#[derive(Debug)]
pub(crate) struct Earlier {
    path: PathBuf,
    /// How many trials it has that have ended.
    ended: usize,
    results: Vec<Known>,
    /// Why trials cannot be used, and how many each time.
    misfits: Misfits,
}

/// The result of a trial.
#[derive(Debug, PartialEq)]
struct Known {
    params: Params,
    end: End,
    /// Its last report: epochs and the value of the first objective.
    last: Option<(f64, f64)>,
}

/// Reasons, with their numbers.
#[derive(Debug, Default)]
struct Misfits(BTreeMap<String, usize>);

impl Misfits {
    fn add(&mut self, reason: impl Into<String>) {
        *self.0.entry(reason.into()).or_default() += 1;
    }
}

/// Reads studies that a study is to learn from. Nothing is written before all of them are known to be good.
pub(crate) fn read(paths: &[PathBuf], study: &Study) -> Result<Vec<Earlier>, cli::Error> {
    paths.iter().map(|path| read_one(path, study)).collect()
}

fn read_one(path: &Path, study: &Study) -> Result<Earlier, cli::Error> {
    if let Some((file, name)) = database(path) {
        let earlier = choose(&file, name)
            .and_then(|name| store::read_optuna(&file, &name).map_err(|source| not_optuna(&file, source)))?;
        return Ok(of_optuna(path, &earlier, study)?);
    }
    let search = results::search(path)?;
    if search.study().objectives != study.objectives {
        return Err(other_objectives(path, goals(search.study()), study).into());
    }
    let ended = search.trials().filter_map(|trial| match &trial.state {
        State::Ended(end) => Some(Known { params: trial.params.clone(), end: end.clone(), last: trial.last }),
        State::Running => None,
    });
    let results: Vec<Known> = ended.collect();
    Ok(Earlier { path: path.to_owned(), ended: results.len(), results, misfits: Misfits::default() })
}

/// Begins a study with what earlier ones have found, for `run`. One that has begun learned from others when it did.
pub(crate) fn begin(
    earlier: Vec<Earlier>,
    folder: &Path,
    study: &Study,
    stderr: &mut impl Write,
) -> Result<(), cli::Error> {
    if earlier.is_empty() || !is_new(folder)? {
        return Ok(());
    }
    let mut search = Search::new(study)?;
    for known in earlier {
        known.teach(&mut search, stderr);
    }
    Ok(store::begin_with(folder, study, search.take_facts())?)
}

/// Whether nothing has happened yet in a folder. What cannot be read is for those who open it.
pub(crate) fn is_new(folder: &Path) -> Result<bool, store::Error> {
    match Reader::open(folder) {
        Ok(reader) => reader.is_empty(),
        Err(error) => Ok(matches!(error, store::Error::NoStudy(_))),
    }
}

impl Earlier {
    /// Shows its results to a search, and says how many were used and why others were not.
    pub(crate) fn teach(self, search: &mut Search, stderr: &mut impl Write) {
        let Self { path, ended, results, mut misfits } = self;
        let before = search.learned();
        for Known { params, end, last } in results {
            if let Err(error) = search.learn(&params, &end, last) {
                misfits.add(error.to_string());
            }
        }
        let learned = search.learned() - before;
        let of = pluralize(ended, "trial");
        // Without stderr there is nowhere to say so.
        let _ = writeln!(stderr, "{}: learned from {learned} of {of}{}", path.display(), misfits.text());
    }
}

impl Misfits {
    fn text(&self) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        let mut reasons: Vec<(&String, &usize)> = self.0.iter().collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let others: usize = reasons.iter().skip(REASONS).map(|(_, count)| **count).sum();
        let mut texts: Vec<String> =
            reasons.iter().take(REASONS).map(|(reason, count)| format!("{count} ({reason})")).collect();
        texts.extend((others > 0).then(|| format!("{others} for other reasons")));
        format!("; not used: {}", texts.join(", "))
    }
}

/// The file of a database, and the name of a study in it: `optuna.db#name`.
fn database(path: &Path) -> Option<(PathBuf, Option<String>)> {
    if store::is_database(path) {
        return Some((path.to_owned(), None));
    }
    let (file, name) = path.to_str()?.rsplit_once('#')?;
    store::is_database(Path::new(file)).then(|| (PathBuf::from(file), Some(name.to_owned())))
}

fn not_optuna(path: &Path, source: store::Error) -> Error {
    Error::NotOptuna { path: path.to_owned(), source: Box::new(source) }
}

fn choose(path: &Path, name: Option<String>) -> Result<String, Error> {
    let mut known = store::optuna_studies(path).map_err(|source| not_optuna(path, source))?;
    let path = path.to_owned();
    match name {
        Some(name) if known.contains(&name) => Ok(name),
        Some(_) | None if known.is_empty() => Err(Error::NoStudy(path)),
        Some(name) => Err(Error::NoSuchStudy { path, name, known }),
        None if known.len() > 1 => Err(Error::SeveralStudies { path, known }),
        None => Ok(known.remove(0)),
    }
}

fn goals(study: &Study) -> String {
    let goals = study.objectives.iter().map(|goal| format!("{} {}", goal.direction, goal.metric));
    goals.collect::<Vec<_>>().join(" and ")
}

/// A value of one objective means nothing for another one.
fn other_objectives(path: &Path, theirs: String, ours: &Study) -> Error {
    Error::OtherObjectives { path: path.to_owned(), theirs, ours: goals(ours) }
}

/// The trials of a study of Optuna, as results of ours.
fn of_optuna(path: &Path, earlier: &OptunaStudy, study: &Study) -> Result<Earlier, Error> {
    let attribute = |all: &[(String, Json)], wanted: &str| {
        all.iter().find(|(key, _)| key == wanted).map(|(_, value)| value.clone())
    };
    let names = attribute(&earlier.system_attributes, "study:metric_names");
    let names: Option<Vec<String>> = names.and_then(|names| serde_json::from_value(names).ok());
    let is_same = |place: usize, direction: &String| {
        let objective = study.objectives.get(place);
        let wanted = objective.map(|objective| match objective.direction {
            Direction::Minimize => "MINIMIZE",
            Direction::Maximize => "MAXIMIZE",
        });
        // Not all studies name what they optimize.
        let name = names.as_ref().and_then(|names| names.get(place));
        wanted == Some(direction)
            && objective.is_some_and(|goal| name.is_none_or(|name| *name == goal.metric))
    };
    let directions = &earlier.directions;
    let same = directions.iter().enumerate().all(|(place, direction)| is_same(place, direction));
    if directions.len() != study.objectives.len() || !same {
        let goal = |(place, direction): (usize, &String)| {
            let name = names.as_ref().and_then(|names| names.get(place)).map_or("a value", String::as_str);
            format!("{} {name}", direction.to_lowercase())
        };
        let theirs: Vec<String> = directions.iter().enumerate().map(goal).collect();
        return Err(other_objectives(path, theirs.join(" and "), study));
    }
    let step = attribute(&earlier.user_attributes, "pollux_tune:step");
    let per_epoch = if step == Some(Json::from("epoch/1000")) { 1000.0 } else { 1.0 };
    let mut known =
        Earlier { path: path.to_owned(), ended: 0, results: Vec::new(), misfits: Misfits::default() };
    for trial in &earlier.trials {
        if matches!(trial.state.as_str(), "RUNNING" | "WAITING") {
            continue;
        }
        known.ended += 1;
        match known_of(trial, &study.space, per_epoch) {
            Ok(result) => known.results.push(result),
            Err(reason) => known.misfits.add(reason),
        }
    }
    Ok(known)
}

/// A trial as a result of ours, or why it is none.
fn known_of(trial: &OptunaTrial, space: &Space, per_epoch: f64) -> Result<Known, String> {
    let last = trial.intermediate.last();
    let last =
        last.filter(|(_, value)| value.is_finite()).map(|(step, value)| (*step as f64 / per_epoch, *value));
    let end = match trial.state.as_str() {
        "COMPLETE" => {
            let values: Option<Vec<f64>> = trial.values.iter().copied().collect();
            End::Done(values.ok_or("its value is not finite")?)
        }
        "PRUNED" => End::Stopped("pruned".to_owned().into()),
        _ => return Err("it failed".to_owned()),
    };
    let mut params = Vec::new();
    for param in &trial.params {
        let value =
            value_of(param).ok_or_else(|| format!("`{}` has no value that can be read", param.name))?;
        params.push((param.name.clone(), value));
    }
    let params: Params = params.into_iter().collect();
    // With values as the space writes them: 1 may be 1.0 here.
    let params = space.complete(&params).map_err(|error| error.to_string())?;
    Ok(Known { params, end, last })
}

fn value_of(OptunaParam { value, distribution, .. }: &OptunaParam) -> Option<Value> {
    let kind = distribution.get("name")?.as_str()?;
    if kind == "CategoricalDistribution" {
        let choices = distribution.get("attributes")?.get("choices")?.as_array()?;
        return match choices.get(*value as usize)? {
            Json::Bool(value) => Some(Value::Bool(*value)),
            Json::String(text) => Some(Value::Text(text.clone())),
            Json::Number(number) => {
                number.as_i64().map(Value::Int).or_else(|| number.as_f64().map(Value::Float))
            }
            _ => None,
        };
    }
    // Also those of versions before 3.
    if kind.starts_with("Int") {
        Value::Float(*value).as_int().map(Value::Int)
    } else {
        Some(Value::Float(*value))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const STUDY: &str = "
space: {lr: {log: [1e-5, 1]}, layers: {int: [1, 8]}, opt: [sgd, adam], seed: 7}
objective: {maximize: acc}
";

    fn study() -> Study {
        Study::from_yaml("study.yaml", STUDY).expect("a study")
    }

    fn param(name: &str, value: f64, kind: &str, attributes: &Json) -> OptunaParam {
        OptunaParam {
            name: name.to_owned(),
            value,
            distribution: json!({"name": kind, "attributes": attributes}),
        }
    }

    fn trial(state: &str, lr: f64, value: Option<f64>) -> OptunaTrial {
        OptunaTrial {
            state: state.to_owned(),
            values: vec![value],
            params: vec![
                param("lr", lr, "FloatDistribution", &json!({})),
                param("layers", 3.0, "IntUniformDistribution", &json!({})),
                param("opt", 1.0, "CategoricalDistribution", &json!({"choices": ["sgd", "adam", null]})),
            ],
            intermediate: vec![(1, 0.25), (2, 0.5)],
            ..OptunaTrial::default()
        }
    }

    fn earlier(trials: Vec<OptunaTrial>) -> OptunaStudy {
        OptunaStudy { directions: vec!["MAXIMIZE".to_owned()], trials, ..OptunaStudy::default() }
    }

    #[test]
    fn what_fits_is_learned_and_the_rest_explained() {
        let mut other = trial("COMPLETE", 0.1, Some(0.5));
        other.params.push(param("extra", 1.0, "FloatDistribution", &json!({})));
        let trials = vec![
            trial("COMPLETE", 0.1, Some(0.75)),
            trial("PRUNED", 0.01, None),
            trial("COMPLETE", 2.0, Some(0.5)),
            trial("COMPLETE", 0.1, None),
            trial("FAIL", 0.1, None),
            trial("RUNNING", 0.1, None),
            other,
        ];
        let known = of_optuna(Path::new("a.db"), &earlier(trials), &study()).expect("the same objectives");
        assert_eq!(known.results.len(), 2);
        assert_eq!(known.results[0].params.to_string(), "lr=0.1 layers=3 opt=adam seed=7");
        assert_eq!(known.results[0].end, End::Done(vec![0.75]));
        assert_eq!(
            (known.results[1].end.kind(), known.results[1].last),
            (crate::trials::stopping::EndKind::Stopped, Some((2.0, 0.5)))
        );
        let (mut search, mut said) = (Search::new(&study()).expect("a search"), Vec::new());
        known.teach(&mut search, &mut said);
        let said = String::from_utf8(said).expect("text");
        assert!(said.starts_with("a.db: learned from 2 of 6 trials; not used: 1 ("), "{said}");
        assert!(
            said.contains("1 (`lr` is 2.0; expected a value of {float: [1e-5, 1.0], log: true})"),
            "{said}"
        );
        assert!(said.trim_end().ends_with("1 for other reasons"), "{said}");
        assert_eq!(search.learned(), 2);
    }

    #[test]
    fn other_objectives_are_refused() {
        let refused = |directions: &[&str], names: Json| {
            let directions = directions.iter().map(|text| (*text).to_owned()).collect();
            let system_attributes = vec![("study:metric_names".to_owned(), names)];
            let earlier = OptunaStudy { directions, system_attributes, ..OptunaStudy::default() };
            of_optuna(Path::new("a.db"), &earlier, &study()).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(refused(&["MAXIMIZE"], Json::Null), Ok(()));
        assert_eq!(refused(&["MAXIMIZE"], json!(["acc"])), Ok(()));
        let problem = refused(&["MINIMIZE"], json!(["loss"])).expect_err("the other direction");
        assert!(problem.contains("(minimize loss) than this study (maximize acc)"), "{problem}");
        assert!(
            refused(&["MAXIMIZE"], json!(["f1"])).is_err() && refused(&["MAXIMIZE"; 2], Json::Null).is_err()
        );
    }

    #[test]
    fn thousandths_of_epochs_become_epochs_again() {
        let mut study_of_ours = earlier(vec![trial("PRUNED", 0.1, None)]);
        study_of_ours.user_attributes = vec![("pollux_tune:step".to_owned(), json!("epoch/1000"))];
        let known = of_optuna(Path::new("a.db"), &study_of_ours, &study()).expect("the same objectives");
        assert_eq!(known.results[0].last, Some((0.002, 0.5)));
    }
}
