use super::*;

fn rows(text: &str) -> Result<Vec<Row>, Error> {
    parse(Path::new("t.csv"), text.as_bytes())
}

fn complaint(text: &str) -> String {
    rows(text).expect_err("the file is bad").to_string()
}

#[test]
fn columns_are_found_by_name_in_any_order_and_others_are_ignored() {
    let by_placement = rows("sync_time,placement,step_time,local_bsz\nx,1,0.5,32\n,43,0.75,64\n").unwrap();
    let file = PathBuf::from("t.csv");
    let first = Row { file, line: 2, shape: Shape::single(), per_gpu: 32, accumulation: 0, step_s: 0.5 };
    let second =
        Row { line: 3, shape: Shape::new(7, 2).unwrap(), per_gpu: 64, step_s: 0.75, ..first.clone() };
    assert_eq!(by_placement, [first.clone(), second.clone()]);

    let by_counts =
        rows("local_bsz,num_replicas,accumulation,num_nodes,step_time\n32,1,0,1,5e-1\n64.0,7,3,2.0,0.75\n");
    assert_eq!(by_counts.unwrap(), [first, Row { accumulation: 3, ..second }]);
}

#[test]
fn byte_order_marks_spaces_crlf_blank_lines_and_comments_do_not_disturb() {
    let text =
        "\u{feff}# measured in May\r\n\r\n step_time , local_bsz,placement\r\n# warm\r\n\r\n0.5, 32 ,1\r\n";
    let text = text.replacen('\u{feff}', "", 1);
    let read = rows(&text).unwrap();
    assert_eq!((read.len(), read[0].line, read[0].per_gpu), (1, 6, 32));
    assert_eq!(rows("\u{feff}step_time,local_bsz,placement\n0.5,32,1").unwrap().len(), 1);
}

#[test]
fn a_missing_column_lists_the_others_and_guesses() {
    assert_eq!(
        complaint("# made by hand\nStepTime,local_bsz,placement\n1,1,1\n"),
        "t.csv:2: no column `step_time` among `StepTime`, `local_bsz`, `placement`; did you mean `StepTime`?"
    );
    assert_eq!(
        complaint("sync_time,local_bsz\n1,1\n"),
        "t.csv:1: no column `step_time` among `sync_time`, `local_bsz`"
    );
    assert_eq!(
        complaint("step_time,local_bsz,num_nodes\n1,1,1\n"),
        "t.csv:1: no column `num_replicas` among `step_time`, `local_bsz`, `num_nodes`"
    );
    assert_eq!(
        complaint("step_time,local_bsz,placements\n1,1,1\n"),
        "t.csv:1: no column `placement` (or `num_nodes` and `num_replicas`) among `step_time`, `local_bsz`, \
         `placements`; did you mean `placements`?"
    );
    assert_eq!(
        complaint("step_time,local_bsz,placement,step_time\n"),
        "t.csv:1: column `step_time` appears twice"
    );
}

#[test]
fn bad_fields_are_named_with_what_is_allowed() {
    for value in ["NaN", "0", "-1", "inf", "1e999", "abc", "0,5"] {
        let value = if value.contains(',') { format!("\"{value}\"") } else { value.to_owned() };
        assert_eq!(
            complaint(&format!("placement,local_bsz,step_time\n1,32,1\n1,32,{value}\n")),
            format!(
                "t.csv:3: step_time is `{}`; expected a finite number of seconds above 0",
                value.trim_matches('"')
            )
        );
    }
    for value in ["", "0", "-3", "1.5", "4294967296", "nan", "many"] {
        assert_eq!(
            complaint(&format!("placement,local_bsz,step_time\n1,{value},1\n")),
            format!("t.csv:2: local_bsz is `{value}`; expected a whole number from 1 to 4294967295")
        );
    }
    for value in ["", "0", "40", "4-4", "-1", "1.0", "٣"] {
        assert_eq!(
            complaint(&format!("placement,local_bsz,step_time\n{value},8,1\n")),
            format!(
                "t.csv:2: placement is `{value}`; expected one digit from 1 to 9 for each node, its GPUs"
            )
        );
    }
    assert_eq!(
        complaint("num_nodes,num_replicas,local_bsz,step_time\n4,2,8,1\n"),
        "t.csv:2: num_nodes is `4`; expected 1 to num_replicas, here 2"
    );
}

#[test]
fn a_quoted_value_is_short_and_without_control_characters() {
    let quoted = complaint(&format!("placement,local_bsz,step_time\n1,\"\u{1b}[2J{}\",1\n", "9".repeat(200)));
    assert!(quoted.starts_with("t.csv:2: local_bsz is `\\u{1b}[2J999") && quoted.len() < 150, "{quoted}");
}

#[test]
fn files_without_a_table_are_refused() {
    for empty in ["", "\n\n# nothing\n"] {
        let needed = "`step_time`, `local_bsz` and `placement`";
        assert_eq!(complaint(empty), format!("t.csv is empty, its first line must name {needed}"));
    }
    assert_eq!(complaint("placement,local_bsz,step_time\n\n"), "t.csv has a header but no rows");
    assert_eq!(
        complaint("placement,local_bsz,step_time\n1,32,1\n\n1,32\n"),
        "t.csv:4: the row has 2 fields, the header has 3"
    );
    let latin1 = parse(Path::new("t.csv"), b"placement,local_bsz,step_time,note\n1,32,1,caf\xe9\n");
    assert_eq!(latin1.expect_err("not UTF-8").to_string(), "t.csv:2: not CSV in UTF-8");
    assert!(matches!(read(Path::new("no/such.csv")), Err(cli::Error::Read { .. })));
}
