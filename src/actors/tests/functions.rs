use std::sync::{Arc, mpsc};

use actix::Recipient;
use tokio::sync::mpsc::UnboundedReceiver;

use super::{in_virtual_time, probe};
use crate::{
    actors::{
        function::{Function, Functions, Trial},
        message::EngineInput,
        supervisor::TrialRunners,
    },
    ids::{Generation, TrialId},
    space::Params,
    trials::{
        engine::{FailureCause, GroupCommand, GroupEvent, Input, Launch, Metrics, Report},
        group::FinalState,
    },
};

struct Scene {
    functions: Functions,
    supervisor: Recipient<EngineInput>,
    inputs: UnboundedReceiver<EngineInput>,
}

impl Scene {
    fn new(function: &Arc<Function>) -> Self {
        let (supervisor, inputs) = probe::<EngineInput>();
        Self { functions: Functions::start(function, 1).expect("threads"), supervisor, inputs }
    }

    fn launch(&mut self, trial: u32, x: f64) {
        let params = Params::from_iter([("x", x.into())]);
        let (generation, slots) = (Generation(3), Vec::new());
        let launch = Launch { generation, slots, params, batch: None, checkpoint: None };
        self.functions.command(TrialId(trial), GroupCommand::Launch(launch), &self.supervisor);
    }

    fn stop(&mut self, trial: u32) {
        let command = GroupCommand::Stop(FinalState::Discarded);
        self.functions.command(TrialId(trial), command, &self.supervisor);
    }

    /// The next thing that a trial says, whose report is acknowledged.
    async fn event(&mut self, trial: u32) -> GroupEvent {
        let EngineInput { input, ack } = self.inputs.recv().await.expect("an input");
        if let Some(ack) = ack {
            ack.send(()).expect("the function waits");
        }
        let Input::Group { trial: of, generation: Generation(3), event } = input else { panic!("{input:?}") };
        assert_eq!(of, TrialId(trial));
        event
    }
}

fn loss(value: f64) -> Metrics {
    Metrics::from([("loss".to_owned(), value.into())])
}

fn failed(reason: &str) -> GroupEvent {
    GroupEvent::Failed { reason: reason.to_owned(), cause: FailureCause::Trial }
}

#[test]
fn a_function_reports_and_returns_its_metrics() {
    in_virtual_time(async {
        let function = |trial: &mut Trial| {
            let x = trial.params().float("x")?;
            trial.report(1.0, [("loss", x)])?;
            trial.report(2.0, [("loss", x / 2.0)])?;
            Ok(loss(x / 4.0))
        };
        let mut scene = Scene::new(&(Arc::new(function) as Arc<Function>));
        scene.launch(0, 8.0);
        for (number, epochs, value) in [(1, 1.0, 8.0), (2, 2.0, 4.0)] {
            let report = Report { number, epochs, metrics: loss(value), ..Report::default() };
            assert_eq!(scene.event(0).await, GroupEvent::Reported(report));
        }
        assert_eq!(scene.event(0).await, GroupEvent::Finished(loss(2.0)));
    });
}

#[test]
fn errors_and_panics_are_failures_of_the_trial_and_the_thread_lives_on() {
    in_virtual_time(async {
        let function = |trial: &mut Trial| match trial.number() {
            0 => Err("out of memory".into()),
            1 => panic!("a mistake in {}", "the function"),
            _ => Ok(loss(0.5)),
        };
        let mut scene = Scene::new(&(Arc::new(function) as Arc<Function>));
        for trial in 0..3 {
            scene.launch(trial, 0.0);
        }
        assert_eq!(scene.event(0).await, failed("out of memory"));
        assert_eq!(scene.event(1).await, failed("it panicked: a mistake in the function"));
        assert_eq!(scene.event(2).await, GroupEvent::Finished(loss(0.5)));
    });
}

#[test]
fn a_trial_that_is_stopped_ends_at_its_next_report_or_never_begins() {
    in_virtual_time(async {
        let (tell, stopped) = mpsc::channel();
        let function = move |trial: &mut Trial| {
            let outcome = trial.report(1.0, [("loss", 1.0)]);
            let _ = tell.send((trial.number(), outcome.is_err()));
            outcome?;
            Ok(loss(0.5))
        };
        let mut scene = Scene::new(&(Arc::new(function) as Arc<Function>));
        for trial in 0..3 {
            scene.launch(trial, 0.0);
        }
        // The decision is made between its report and the answer to that.
        let EngineInput { ack, .. } = scene.inputs.recv().await.expect("a report");
        scene.stop(0);
        scene.stop(1);
        ack.expect("it waits").send(()).expect("it waits");
        assert!(matches!(scene.event(2).await, GroupEvent::Reported(_)), "nothing comes of trials 0 and 1");
        assert_eq!(scene.event(2).await, GroupEvent::Finished(loss(0.5)));
        assert_eq!(stopped.try_iter().collect::<Vec<_>>(), [(0, true), (2, false)]);
    });
}
