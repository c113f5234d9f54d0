//! The form of facts in journals, which must not change without [`JournalEntry::VERSION`].

use super::*;

const LINES: &str = r#"
{"at_s":0.5,"fact":{"study_created":{"yaml":"space: {}"}}}
{"at_s":0.5,"fact":{"study_changed":{"yaml":"space: {}"}}}
{"at_s":0.5,"fact":{"head_started":{}}}
{"at_s":0.5,"fact":{"node_joined":{"node":0,"gpu_type":"t4","group":0,"slots":4}}}
{"at_s":0.5,"fact":{"node_joined":{"node":0,"name":"gpu1","gpu_type":"t4","group":0,"slots":4}}}
{"at_s":0.5,"fact":{"node_draining":{"node":0,"until_s":120.5,"reason":"its time ends"}}}
{"at_s":0.5,"fact":{"node_lost":{"node":0,"reason":"no word from it"}}}
{"at_s":0.5,"fact":{"slot_joined":{"slot":[0,1]}}}
{"at_s":0.5,"fact":{"slot_lost":{"slot":[0,1],"reason":"exit code 9"}}}
{"at_s":0.5,"fact":{"node_blocked":{"node":0,"reason":"no more processes"}}}
{"at_s":0.5,"fact":{"study_waiting":{"reason":"no space left"}}}
{"at_s":0.5,"fact":{"study_resumed":{}}}
{"at_s":0.5,"fact":{"result_imported":{"params":{"lr":0.1,"act":"relu"},"end":{"done":[0.5]}}}}
{"at_s":0.5,"fact":{"result_imported":{"params":{"lr":0.1,"act":"relu"},"end":{"stopped":"rank 2 of 2"},"last":[1.0,0.25]}}}
{"at_s":0.5,"fact":{"trial_enqueued":{"params":{"lr":0.1,"act":"relu"}}}}
{"at_s":0.5,"fact":{"trial_created":{"trial":3,"params":{"lr":0.1,"act":"relu"},"point":[0.25,1.0,null]}}}
{"at_s":0.5,"fact":{"plan_adopted":{"targets":[{"trial":3,"slots":[[0,1]],"speedup":1.5,"reason":"grown"}],"fitness":1.25,"bound":1.5}}}
{"at_s":0.5,"fact":{"plan_adopted":{"targets":[],"fitness":1.25}}}
{"at_s":0.5,"fact":{"trial_started":{"trial":3,"generation":1,"slots":[[0,1]]}}}
{"at_s":0.5,"fact":{"trial_started":{"trial":3,"generation":2,"slots":[[0,1]],"batch":{"per_gpu":64,"accumulation":0},"holders":[[0,0]]}}}
{"at_s":0.5,"fact":{"group_formed":{"trial":3,"generation":2}}}
{"at_s":0.5,"fact":{"retuned":{"trial":3,"generation":2,"batch":{"per_gpu":64,"accumulation":1}}}}
{"at_s":0.5,"fact":{"measured":{"trial":3,"generation":2,"number":1,"epochs":0.5,"metrics":{"accuracy":0.5,"loss":null},"gpu_type":"t4","steps":[{"gpus":2,"nodes":1,"per_gpu":64,"accumulation":0,"seconds":0.25,"steps":9}],"noise":100.0}}}
{"at_s":0.5,"fact":{"measured":{"trial":3,"generation":2,"number":1,"epochs":0.5}}}
{"at_s":0.5,"fact":{"refitted":{"trial":3,"fit":{"models":{"t4":{"compute":{"alpha_s":0.1,"beta_s":0.01},"sync":[{"alpha_s":0.1,"beta_s":0.0},{"alpha_s":0.2,"beta_s":0.0}],"gamma":2.0}},"noise":100.0,"cap":4}}}}
{"at_s":0.5,"fact":{"checkpointed":{"trial":3,"checkpoint":{"name":"3/2","epochs":0.5}}}}
{"at_s":0.5,"fact":{"batch_limited":{"gpu_type":"t4","limit":512,"failed":1024,"trial":3}}}
{"at_s":0.5,"fact":{"trial_pausing":{"trial":3}}}
{"at_s":0.5,"fact":{"checkpoint_failed":{"trial":3,"reason":"no space left"}}}
{"at_s":0.5,"fact":{"trial_paused":{"trial":3,"checkpoint":{"name":"3/2","epochs":0.5}}}}
{"at_s":0.5,"fact":{"trial_interrupted":{"trial":3,"reason":"all workers were lost","failed":false}}}
{"at_s":0.5,"fact":{"trial_done":{"trial":3,"values":[0.5]}}}
{"at_s":0.5,"fact":{"trial_stopped":{"trial":3,"reason":"rank 2 of 2"}}}
{"at_s":0.5,"fact":{"trial_failed":{"trial":3,"reason":"exit code 1"}}}
{"at_s":0.5,"fact":{"trial_retried":{"trial":3}}}
{"at_s":0.5,"fact":{"trial_cancelled":{"trial":3,"reason":"by hand"}}}
{"at_s":0.5,"fact":{"suggestions_ended":{"reason":"everything was tried","failed":false}}}
{"at_s":0.5,"fact":{"suggestions_ended":{"reason":"the time of the study is up","failed":false,"limit":"timeout"}}}
{"at_s":0.5,"fact":{"suggestions_ended":{"reason":"10 trials have failed","failed":true,"limit":"failures"}}}
{"at_s":0.5,"fact":{"suggestions_reopened":{}}}
{"at_s":0.5,"fact":{"stop_requested":{}}}
{"at_s":0.5,"fact":{"pause_requested":{}}}
{"at_s":0.5,"fact":{"resume_requested":{}}}
{"at_s":0.5,"fact":{"study_done":{}}}
"#;

#[test]
fn facts_are_read_and_written_as_ever() {
    assert_eq!(
        JournalEntry::VERSION,
        5,
        "2 added `result_imported` and `trial_enqueued`, 3 `trial_retried` and waiting, 4 `node_draining`, names of nodes and `batch_limited`, \
         5 `pause_requested` and `resume_requested`"
    );
    for line in LINES.trim().lines() {
        let entry: JournalEntry = serde_json::from_str(line).expect(line);
        assert_eq!(serde_json::to_string(&entry).expect("facts are JSON"), line);
        assert!(line.contains(&format!("\"{}\":", entry.fact.kind())), "{line}");
        assert_eq!(line.contains("\"trial\":3") && !line.contains("plan"), entry.fact.trial().is_some());
    }
}

#[test]
fn numbers_that_are_none_are_equal_after_json() {
    let nan = Number::from(f64::INFINITY);
    let text = serde_json::to_string(&nan).expect("it is JSON");
    assert_eq!((text.as_str(), serde_json::from_str::<Number>(&text).ok()), ("null", Some(nan)));
}
