use super::*;
use crate::sim::JobReport;

fn all() -> Vec<(&'static str, Vec<Case>)> {
    vec![
        ("load", cases::load().unwrap()),
        ("fresh", cases::fresh().unwrap()),
        ("table2", cases::table2().unwrap()),
        ("interval", cases::interval().unwrap()),
        ("interference", cases::interference().unwrap()),
        ("types", cases::types().unwrap()),
    ]
}

/// Reports of one job each that took so long.
fn reports(count: usize, jct_s: f64) -> Vec<Report> {
    let job = JobReport {
        name: "a".to_owned(),
        application: "ncf",
        submitted_s: 0.0,
        completed_s: jct_s,
        restarts: 1,
        gpu_hours: 2.0,
        rho: 0.5,
    };
    vec![Report { jobs: vec![job] }; count]
}

#[test]
fn what_is_the_same_simulation_runs_once() {
    let cases: Vec<Case> = all().into_iter().flat_map(|(_, cases)| cases).collect();
    let again = |place: usize| cases[..place].iter().any(|case| case.is_like(&cases[place]));
    let repeated: Vec<&str> =
        (0..cases.len()).filter(|&place| again(place)).map(|at| &*cases[at].setting).collect();
    // Those of load 1 that other tables show as well: goodput, p = -1, the fixed ones, 60 s twice, and no interference.
    let expected =
        ["any jobs", "any jobs, p = -1", "tuned jobs", "tuned jobs", "60 s", "60 s", "0 %, avoided"];
    assert_eq!(repeated, expected);
    let settings = Settings { folder: PathBuf::new(), only: Vec::new(), workloads: 1, threads: 1 };
    let (case, known) = (cases::load().unwrap().swap_remove(5), reports(1, 77.0));
    let found = run_all(
        &[case],
        &settings,
        &vec![(cases::load().unwrap().swap_remove(5), known.clone())],
        &mut Vec::new(),
    );
    assert_eq!(found.unwrap(), [known], "taken from what is done, not simulated");
}

#[test]
fn published_means_stand_next_to_ours_only_over_all_workloads() {
    let page = |count| {
        let mut cases = cases::load().unwrap();
        markdown("load", &vec![(cases.swap_remove(5), reports(count, 2.0 * 2751.0))])
    };
    assert!(
        page(8).contains("| 1.0 | `pollux` | 2751 | 5502 | 2.000 | 5502 | 5502 | 2 | 1.0 | 0.5 | 0 % |"),
        "{}",
        page(8)
    );
    assert!(page(7).contains("| 1.0 | `pollux` |  | 5502 |  |"), "{}", page(7));
}

#[test]
fn every_experiment_has_a_table_and_lines_that_can_be_told_apart() {
    for (name, cases) in all() {
        let rows: Done = cases.into_iter().map(|case| (case, reports(2, 100.0))).collect();
        let (lines, figure) = (csv(&rows), drawings::of(name, &rows));
        assert_eq!(lines.lines().count(), 1 + 2 * rows.len(), "{name}");
        let fields: Vec<usize> = lines.lines().map(|line| line.split(',').count()).collect();
        assert!(fields.iter().all(|count| *count == fields[0]), "{name}");
        for panel in figure.panels {
            let drawn = |series: &plot::Series| !series.line.is_empty() || !series.points.is_empty();
            assert!((2..=4).contains(&panel.series.len()) && panel.series.iter().all(drawn), "{name}");
        }
        assert!(EXPERIMENTS.contains(&name));
    }
}

#[test]
fn ten_workloads_are_drawn_and_compared_with_those_of_pollux() {
    let cases = cases::fresh().unwrap();
    let counts = |most| cases.iter().map(|case| case.jobs.workloads(most).unwrap().len()).collect::<Vec<_>>();
    assert_eq!((counts(ALL), counts(2)), (vec![10; 3], vec![2; 3]));
    let times = [200.0, 150.0, 180.0];
    let rows: Done = cases.into_iter().zip(times).map(|(case, jct_s)| (case, reports(10, jct_s))).collect();
    let page = markdown("fresh", &rows);
    assert!(
        page.contains("`goodput`, epochs as declared: **0.750** of that of `pollux` (0.750 to 0.750"),
        "{page}"
    );
    assert!(page.contains("epochs wrong by a factor of 2: **0.900** of"), "{page}");
}

#[test]
fn scaling_by_goodput_costs_less_and_takes_longer() {
    let Experiment { csv, page, .. } = autoscale::run().unwrap();
    assert!(csv.starts_with("by,from_s,nodes,batch,efficiency\ngoodput,0,"), "{csv}");
    let ratio = |what: &str| -> f64 {
        let line = page.lines().find(|line| line.starts_with(what)).unwrap();
        line.split('|').nth(3).unwrap().trim().parse().unwrap()
    };
    assert!((0.7..0.9).contains(&ratio("| cost")) && (1.0..1.5).contains(&ratio("| time")), "{page}");
}
