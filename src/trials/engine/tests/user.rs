//! What the user asks of a study from outside: to pause, to resume, to try known parameters.

use super::{
    rigid::{RIGID, finished},
    *,
};
use crate::{space::Params, trials::group::FinalState};

fn params(x: f64) -> Params {
    Params::from_iter([("x", x.into())])
}

fn saved(trial: u32, generation: u32, epochs: f64) -> Input {
    let checkpoint = Checkpoint { name: format!("{trial}/{generation}"), epochs };
    Input::group(TrialId(trial), Generation(generation), GroupEvent::Paused(checkpoint))
}

fn stops(commands: &[Command], state: FinalState) -> Vec<u32> {
    let stop = GroupCommand::Stop(state);
    let stopped = commands.iter().filter_map(|command| match command {
        Command::Group { trial, command } if *command == stop => Some(trial.0),
        _ => None,
    });
    stopped.collect()
}

#[test]
fn elastic_trials_of_a_paused_study_leave_with_their_state_and_come_back() {
    let mut scene = Scene::two_running(2);
    let (facts, commands) = scene.input(Input::PauseRequested);
    assert_eq!(kinds(&facts), ["pause_requested", "trial_pausing", "trial_pausing"]);
    assert_eq!(stops(&commands, FinalState::Saved), [0, 1]);
    assert_eq!(scene.input(Input::PauseRequested), (vec![], vec![]), "it is paused already");
    for trial in 0..2 {
        assert_eq!(kinds(&scene.input(saved(trial, 1, 1.0)).0), ["trial_paused"]);
    }
    assert!(scene.engine.state.reserved().is_empty(), "their slots are free");
    // No question, no launch and no end, however long it lasts.
    assert_eq!(scene.pass(10_000.0), (vec![], vec![]));
    assert_eq!(kinds(&scene.input(node_joined(7, 2)).0), ["node_joined"]);
    assert!(scene.engine.state.paused_s == Some(0.0) && !scene.engine.state.done);
    let demand = scene.engine.demand(scene.now_s);
    assert_eq!((demand.snapshot.trials.len(), demand.to_come, demand.is_over), (0, 0, false));
    let (facts, commands) = scene.input(Input::ResumeRequested);
    assert_eq!(kinds(&facts), ["resume_requested", "trial_started", "trial_started"], "where they were");
    let launched = commands.iter().filter_map(|command| match command {
        Command::Group { command: GroupCommand::Launch(launch), .. } => launch.checkpoint.clone(),
        _ => None,
    });
    assert_eq!(launched.map(|checkpoint| checkpoint.name).collect::<Vec<_>>(), ["0/1", "1/1"]);
    assert!(
        commands.iter().any(|command| matches!(command, Command::Allocate(_))),
        "and a new plan: {commands:?}"
    );
    assert_eq!(scene.input(Input::ResumeRequested), (vec![], vec![]), "it is not paused");
}

#[test]
fn what_is_about_to_start_is_called_back_and_what_moves_arrives_first() {
    let mut scene = Scene::two_running(2);
    // Trial 1 gives slots to trial 0 and forms again; then trial 0 is to follow.
    scene.ask_for_plan();
    let (facts, _) = scene.plan(&[(0, &[(0, 2), (1, 1)]), (1, &[(1, 1)])]);
    assert_eq!(kinds(&facts), ["plan_adopted", "trial_started"]);
    let (facts, _) = scene.input(Input::PauseRequested);
    assert_eq!(kinds(&facts), ["pause_requested", "trial_pausing"], "only who has its state in one place");
    assert_eq!(kinds(&scene.ready(1, 2).0), ["group_formed", "trial_pausing"]);
    // A launch has no state to save.
    let mut scene = Scene::with_nodes(ELASTIC, &[2]);
    scene.suggest();
    scene.fit(0, None);
    scene.suggest();
    scene.fit(1, None);
    scene.plan(&[(0, &[(0, 1)]), (1, &[(0, 1)])]);
    let (facts, commands) = scene.input(Input::PauseRequested);
    assert_eq!(kinds(&facts), ["pause_requested", "trial_interrupted", "trial_interrupted"]);
    assert_eq!(stops(&commands, FinalState::Discarded), [0, 1]);
    assert_eq!(scene.trial(0).failures, Failures::default(), "that is not held against it");
}

#[test]
fn programs_run_to_their_end_and_no_other_begins() {
    let mut scene = Scene::with_nodes(RIGID, &[2]);
    for trial in 0..2 {
        scene.suggest();
        scene.ready(trial, 1);
    }
    scene.now_s = 10.0;
    assert_eq!(kinds(&scene.input(Input::PauseRequested).0), ["pause_requested"]);
    scene.now_s = 20.0;
    assert_eq!(kinds(&scene.input(finished(0, 1, 0.5)).0), ["trial_done"], "and no question");
    assert_eq!(scene.engine.pending.ask, None);
    // The study's 1000 s stand still, those of the program do not.
    assert_eq!(kinds(&scene.pass(1000.0).0), ["trial_failed"]);
    assert_eq!(scene.engine.state.search_ended, None);
    scene.now_s = 5010.0;
    let (facts, commands) = scene.input(Input::ResumeRequested);
    assert_eq!(kinds(&facts), ["resume_requested"]);
    assert!(commands.contains(&Command::WakeAt { at_s: 6000.0 }), "{commands:?}");
    assert_eq!(kinds(&scene.suggest().0), ["trial_created", "trial_started"]);
}

#[test]
fn a_pause_outlives_the_head() {
    let mut scene = Scene::with_nodes(RIGID, &[2]);
    scene.suggest();
    scene.now_s = 10.0;
    scene.input(Input::PauseRequested);
    scene.now_s = 100.0;
    let (facts, _) = scene.restart();
    assert_eq!(kinds(&facts), ["head_started"]);
    assert_eq!(scene.engine.state.paused_s, Some(10.0));
    assert_eq!(kinds(&scene.input(node_joined(0, 2)).0), ["node_joined"], "no launch");
    assert_eq!(scene.engine.pending.ask, None);
    assert_eq!(
        (scene.engine.state.up_s, scene.engine.state.facts > 0),
        (10.0, true),
        "what was paused is not counted"
    );
    scene.now_s = 150.0;
    assert_eq!(kinds(&scene.input(Input::ResumeRequested).0), ["resume_requested", "trial_started"]);
    assert_eq!((scene.engine.state.up_s, scene.engine.state.started_s), (-40.0, 100.0));
    assert_eq!(scene.engine.study_ends_s(), Some(1140.0));
    // Paused and stopped, it is paused when it is run again.
    scene.input(Input::PauseRequested);
    scene.input(Input::StopRequested);
    assert!(scene.engine.state.stopping);
    scene.restart();
    assert!(scene.engine.state.paused_s.is_some() && !scene.engine.state.stopping);
}

#[test]
fn known_parameters_are_the_next_to_be_tried() {
    let mut scene = Scene::with_nodes(RIGID, &[2]);
    let (facts, _) = scene.input(Input::EnqueueRequested { params: params(0.25) });
    assert_eq!(facts, [Fact::TrialEnqueued { params: params(0.25) }]);
    assert_eq!(
        scene.input(Input::EnqueueRequested { params: params(2.0) }),
        (vec![], vec![]),
        "not in the space"
    );
    scene.suggest();
    assert_eq!(scene.trial(0).params, params(0.25));
    assert!(scene.engine.state.queue.is_empty());
    scene.suggest();
    assert_ne!(scene.trial(1).params, params(0.25));
}

#[test]
fn a_search_with_nothing_left_to_try_tries_what_is_enqueued() {
    let grid = "
space: {x: [1, 2]}
objective: {minimize: loss}
trial: {command: [train]}
search: {trials: 5, parallel: 2, algorithm: grid}
";
    let mut scene = Scene::with_nodes(grid, &[2]);
    scene.suggest();
    scene.suggest();
    scene.input(finished(0, 1, 0.5));
    assert_eq!(kinds(&scene.suggest().0), ["suggestions_ended"]);
    let again = Params::from_iter([("x", 1.into())]);
    let (facts, _) = scene.input(Input::EnqueueRequested { params: again.clone() });
    assert_eq!(facts, [Fact::SuggestionsReopened {}, Fact::TrialEnqueued { params: again.clone() }]);
    assert_eq!(kinds(&scene.suggest().0), ["trial_created", "trial_started"]);
    assert_eq!(scene.trial(2).params, again);
    assert_eq!(scene.engine.state.retry(&[]).map(|facts| facts.len()), Ok(0));
}
