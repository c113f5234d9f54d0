use std::path::Path;

use serde_json::{Value, json};

use super::{
    Commands,
    answers::{self, Problem},
    model::Model,
    studies::View,
};
use crate::{
    alloc::Reason,
    goodput::{BatchPlan, NoiseScale, Observation, Shape},
    ids::{Generation, GpuType, NodeId, SlotId, TrialId},
    space::Study,
    store::{Folder, TrialState},
    trials::engine::{Fact, JournalEntry, State, Target},
};

/// Tells events by the names of their facts, and does nothing.
pub(super) struct Names;

impl Commands for Names {
    fn stop(&self, _: &Path) -> Result<String, String> {
        Ok("stopped".to_owned())
    }
    fn stop_trial(&self, _: &Path, _: TrialId) -> Result<String, String> {
        Ok("stopped".to_owned())
    }
    fn retry(&self, _: &Path, _: &[TrialId]) -> Result<String, String> {
        Ok("retried".to_owned())
    }
    fn pause(&self, _: &Path) -> Result<String, String> {
        Ok("paused".to_owned())
    }
    fn unpause(&self, _: &Path) -> Result<String, String> {
        Ok("resumed".to_owned())
    }
    fn enqueue(&self, _: &Path, _: &[(String, String)]) -> Result<String, String> {
        Ok("enqueued".to_owned())
    }
    fn resume(&self, _: &Path) -> String {
        "run".to_owned()
    }
    fn event(&self, entry: &JournalEntry, _: TrialId) -> Option<String> {
        (!matches!(entry.fact, Fact::Measured { .. })).then(|| entry.fact.kind().to_owned())
    }
    fn machines(&self, _: &State) -> Vec<Value> {
        Vec::new()
    }
}

const ELASTIC: &str = "
space: {lr: {log: [1e-3, 1]}, optimizer: [sgd, adam]}
objective: {minimize: loss}
trial: {trainable: cifar10, epochs: 8, initial_batch: 128, max_batch: 4096}
search: {trials: 10000, parallel: 2}
";

/// A study that is made of facts.
struct Scene {
    model: Model,
    study: Study,
    at_s: f64,
}

impl Scene {
    fn new(yaml: &str) -> Self {
        let study = Study::from_yaml("study.yaml", yaml).expect("it is right");
        let mut scene = Self { model: Model::default(), study, at_s: 1000.0 };
        scene.fact(Fact::StudyCreated { yaml: yaml.to_owned() });
        scene
    }

    /// With a head and a machine of four slots.
    fn running() -> Self {
        let mut scene = Self::new(ELASTIC);
        scene.fact(Fact::HeadStarted {});
        let gpu_type = GpuType::new("t4").expect("a name");
        scene.fact(Fact::NodeJoined {
            node: NodeId(0),
            name: "gpu1".to_owned(),
            gpu_type,
            island: 0,
            slots: 4,
        });
        scene
    }

    fn fact(&mut self, fact: Fact) {
        self.model.apply(&JournalEntry { at_s: self.at_s, fact }, &Names).expect("it follows");
    }

    fn create(&mut self) -> TrialId {
        let trial = TrialId(self.model.trials.len() as u32);
        let part = (f64::from(trial.0) * 0.618).fract();
        let point = vec![Some(part), Some(f64::from(trial.0 % 2))];
        let params = self.study.space.decode(&point).expect("it is a point");
        self.fact(Fact::TrialCreated { trial, params, point });
        trial
    }

    fn plan(&mut self, trial: TrialId, on: &[u32], reason: Reason) {
        let target = Target { trial, slots: slots(on), speedup: 1.5, reason };
        self.fact(Fact::PlanAdopted { targets: vec![target], fitness: 1.0, bound: None });
    }

    fn start(&mut self, trial: TrialId, generation: u32, on: &[u32], holders: &[u32]) {
        let batch = Some(BatchPlan { per_gpu: 128, accumulation: 0 });
        let (generation, holders) = (Generation(generation), slots(holders));
        self.fact(Fact::TrialStarted { trial, generation, slots: slots(on), batch, holders });
    }

    fn report(&mut self, trial: TrialId, number: u32, epochs: f64, loss: f64) {
        let generation = self.model.state.active[&trial].generation;
        let steps = vec![Observation {
            shape: Shape::new(2, 1).expect("a shape"),
            per_gpu: 128.0,
            accumulation: 0,
            iter_time_s: 0.5,
            steps: 10.0,
        }];
        let noise = Some(NoiseScale::new(128.0).expect("it is positive"));
        let metrics = [("loss".to_owned(), loss.into())].into();
        let gpu_type = GpuType::new("t4").ok();
        self.fact(Fact::Measured {
            trial,
            generation,
            number,
            epochs,
            metrics,
            gpu_type,
            steps,
            noise,
            noise_batch: None,
        });
    }

    fn view<T>(&self, look: impl FnOnce(&View<'_>) -> T) -> T {
        let folder = Folder::new(Path::new("/nowhere/study"));
        look(&View { key: "study", folder, model: &self.model, problem: None, is_run: true })
    }
}

fn slots(indices: &[u32]) -> Vec<SlotId> {
    indices.iter().map(|&index| SlotId { node: NodeId(0), index }).collect()
}

fn query<T: for<'de> serde::Deserialize<'de>>(text: &str) -> T {
    actix_web::web::Query::<T>::from_query(text).expect("a query").into_inner()
}

#[test]
fn a_trial_has_its_slots_its_speed_and_the_reasons() {
    let mut scene = Scene::running();
    let trial = scene.create();
    scene.plan(trial, &[0], Reason::Started);
    scene.start(trial, 1, &[0], &[]);
    scene.at_s += 5.0;
    let page = scene.view(|view| answers::trial(view, trial)).expect("it is there");
    assert_eq!(page["state"], json!("starting"), "as in other texts");
    scene.fact(Fact::GroupFormed { trial, generation: Generation(1) });
    scene.at_s += 5.0;
    scene.plan(trial, &[0, 1], Reason::Grown);
    scene.start(trial, 2, &[0, 1], &[0]);
    scene.fact(Fact::GroupFormed { trial, generation: Generation(2) });
    scene.at_s += 10.0;
    scene.report(trial, 1, 2.0, 0.5);
    scene.fact(Fact::TrialDone { trial, values: vec![0.5] });
    let timeline = scene.view(|view| answers::timeline(view, &query("")));
    assert_eq!(timeline["rows"].as_array().map(Vec::len), Some(4));
    let grown = "makes good use of more GPUs";
    assert_eq!(
        timeline["spans"],
        json!([
            [0, 0, 0.0, 10.0, 5.0, false, 1, "started", 1],
            [0, 0, 10.0, 20.0, 10.0, true, 2, grown, 1],
            [1, 0, 10.0, 20.0, 10.0, true, 2, grown, 1],
        ])
    );
    let page = scene.view(|view| answers::trial(view, trial)).expect("it is there");
    assert_eq!((&page["state"], &page["duration"]), (&json!("done"), &json!(20.0)));
    assert_eq!(page["curves"]["loss"], json!([[2.0, 20.0, 0.5]]));
    // 256 examples in half a second; at the noise scale of 128, twice the batch has 2/3 of the efficiency, and 4/3 of the learning rate.
    let speed: Vec<f64> =
        page["speed"][0].as_array().expect("a row").iter().filter_map(Value::as_f64).collect();
    let (throughput, efficiency) = (512.0, 2.0 / 3.0);
    let wanted = [20.0, 2.0, 2.0, 256.0, 4.0 / 3.0, efficiency, throughput, throughput * efficiency];
    assert!(speed.iter().zip(wanted).all(|(is, wanted)| (is - wanted).abs() < 1e-9), "{speed:?}");
    assert_eq!(page["decisions"][1]["reason"], json!(grown));
    assert_eq!(page["decisions"][1]["slots"], json!(["0.0", "0.1"]));
    assert_eq!(page["events"][0], json!([0.0, "trial_created"]));
    assert_eq!(page["log"], Value::Null);
    let missing = scene.view(|view| answers::trial(view, TrialId(7)));
    assert_eq!(missing, Err(Problem::Missing("there is no trial 7, 1 so far".to_owned())));
}

#[test]
fn time_stands_still_while_nobody_runs_the_study() {
    let mut scene = Scene::running();
    let trial = scene.create();
    scene.start(trial, 1, &[2], &[]);
    scene.at_s += 30.0;
    scene.fact(Fact::StopRequested {});
    scene.at_s += 5000.0;
    scene.fact(Fact::HeadStarted {});
    assert_eq!(scene.model.state_of(trial), TrialState::Waiting);
    scene.at_s += 4.0;
    let timeline = {
        scene.fact(Fact::SuggestionsEnded {
            reason: "enough".to_owned(),
            severity: crate::trials::engine::Severity::Normal,
            limit: None,
        });
        scene.view(|view| answers::timeline(view, &query("")))
    };
    assert_eq!((&timeline["seconds"], &timeline["resumed"]), (&json!(34.0), &json!([30.0])));
    assert_eq!(timeline["spans"][0][3], json!(30.0), "its slot was its own until then");
}

#[test]
fn a_study_of_ask_and_tell_is_shown_too() {
    let mut scene = Scene::new(ELASTIC);
    let trial = scene.create();
    assert_eq!(scene.model.state_of(trial), TrialState::Running);
    let running = scene.view(answers::running);
    assert_eq!(running["found"], json!(1));
    scene.fact(Fact::TrialDone { trial, values: vec![0.25] });
    let about = scene.view(|view| answers::overview(view, &Names, true));
    assert_eq!((&about["best"]["values"]["loss"], &about["can"]["stop"]), (&json!(0.25), &json!(false)));
}

/// Ten thousand finished trials.
fn large() -> Scene {
    let mut scene = Scene::running();
    for number in 0..10_000_u32 {
        let trial = scene.create();
        let slot = number % 4;
        scene.start(trial, 1, &[slot], &[]);
        for report in 1..=3 {
            scene.at_s += 0.5;
            scene.report(trial, report, f64::from(report), 1.0 / f64::from(report));
        }
        let value = (f64::from(number) * 0.37).sin();
        if number % 10 == 9 {
            scene.fact(Fact::TrialFailed { trial, reason: "out of luck".to_owned() });
        } else {
            scene.fact(Fact::TrialDone { trial, values: vec![value] });
        }
    }
    scene
}

#[test]
fn large_studies_are_paged_and_thinned_out() {
    let scene = large();
    let list = |text: &str| scene.view(|view| answers::trials(view, &query(text)));
    let page = list("limit=20&offset=40").expect("a page");
    let ids = |page: &Value| -> Vec<u64> {
        page["trials"].as_array().into_iter().flatten().filter_map(|row| row["id"].as_u64()).collect()
    };
    assert_eq!(ids(&page), (40..60).collect::<Vec<_>>());
    assert_eq!((&page["total"], &page["found"]), (&json!(10_000), &json!(10_000)));
    assert_eq!(ids(&list("limit=100000").expect("a page")).len(), 500, "no page is larger");
    let failed = list("state=failed&sort=id&descending=true&limit=2").expect("a page");
    assert_eq!((&failed["found"], ids(&failed)), (&json!(1000), vec![9999, 9989]));
    let best = list("sort=value:loss&limit=3&state=done").expect("a page");
    let values: Vec<f64> = best["trials"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|row| row["values"]["loss"].as_f64())
        .collect();
    assert!(values.len() == 3 && values.is_sorted() && values[0] < -0.999, "{values:?}");
    let found = list("search=optimizer%3Dadam&limit=1&sort=param:lr").expect("a page");
    assert_eq!(found["found"], json!(5000));
    assert_eq!(list("sort=colour"), Err(Problem::Bad("trials cannot be sorted by \"colour\"".to_owned())));

    let history = scene.view(|view| answers::history(view, &query("objective=0"))).expect("there is one");
    let points = history["points"].as_array().expect("points");
    assert!(points.len() <= 3100, "{}", points.len());
    let last = points.last().and_then(|point| point[3].as_f64()).expect("a best value");
    assert!((last - values[0]).abs() < 1e-12, "the best one is not lost");
    let none = scene.view(|view| answers::history(view, &query("objective=1")));
    assert!(matches!(none, Err(Problem::Missing(_))));

    let timeline = scene.view(|view| answers::timeline(view, &query("")));
    let spans = timeline["spans"].as_array().map(Vec::len).expect("spans");
    assert!(timeline["found"] == json!(10_000) && spans <= 6000, "{spans}");
    let window = scene.view(|view| answers::timeline(view, &query("from=100&to=130")));
    assert!((20..=24).contains(&window["spans"].as_array().map(Vec::len).expect("spans")));

    let analysis = scene.view(answers::analysis);
    let rows = analysis["trials"].as_array().expect("rows");
    assert!(analysis["done"] == json!(9000) && rows.len() <= 1500, "{}", rows.len());
    assert!(rows.iter().any(|row| row[1][0].as_f64() == Some(values[0])), "the best one is drawn");
    let size = serde_json::to_string(&(analysis, history, timeline)).expect("JSON").len();
    assert!(size < 1_500_000, "{size} bytes");
}
