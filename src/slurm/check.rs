//! Whether Slurm has what a study file asks for.

use super::{Error, Tools, tool::Tool};
use crate::{
    ids::GpuType,
    space::{Gres, PilotSpec},
};

/// Partition, time limit, nodes, cores and resources of nodes that are alike.
const FORMAT: &str = "%P|%l|%D|%c|%G";

/// Nodes of a partition that are alike.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    partition: String,
    is_default: bool,
    /// None for no limit.
    minutes: Option<u64>,
    nodes: u32,
    cores: u32,
    gpus: Vec<Gres>,
}

/// What the partitions of a cluster have.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Partitions(Vec<Row>);

/// What was found out about a kind of pilots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// What its slots are, if only one type of GPU comes into question.
    pub gpu_type: Option<GpuType>,
    /// For people.
    pub line: String,
}

impl Partitions {
    /// Asks Slurm.
    pub fn ask(tools: &Tools) -> Result<Self, Error> {
        Self::parse(&tools.run(Tool::Sinfo, &["--noheader", "--all", "--format", FORMAT])?)
    }

    fn parse(text: &str) -> Result<Self, Error> {
        let row = |line: &str| {
            let mut fields = line.splitn(5, '|').map(str::trim);
            let name = fields.next()?;
            let limit = fields.next()?;
            Some(Row {
                partition: name.trim_end_matches('*').to_owned(),
                is_default: name.ends_with('*'),
                minutes: minutes(limit)?,
                nodes: fields.next()?.parse().ok()?,
                // A range if nodes differ: `16+`.
                cores: fields.next()?.trim_end_matches('+').parse().ok()?,
                gpus: gpus(fields.next()?),
            })
        };
        let strange = |line: &str| Error::Strange { program: "sinfo", text: line.to_owned() };
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let rows = lines.map(|line| row(line).ok_or_else(|| strange(line))).collect::<Result<_, _>>()?;
        Ok(Self(rows))
    }

    /// Whether pilots of this kind can run, and what was found out; `field` is where its kind is in the study file.
    pub fn check(&self, field: &str, spec: &PilotSpec) -> Result<Checked, Error> {
        let wrong = |key: &str, found: String, allowed: String| Error::Impossible {
            field: format!("{field}.{key}"),
            found,
            allowed,
        };
        let rows = self.of(spec).map_err(|(found, allowed)| wrong("partition", found, allowed))?;
        let where_ = spec.partition.clone().unwrap_or_else(|| rows[0].partition.clone());
        let able: Vec<&&Row> = rows.iter().filter(|row| row.has(spec)).collect();
        if able.is_empty() {
            let there = list(rows.iter().flat_map(|row| row.gpus.iter().map(ToString::to_string)));
            let allowed = match there.as_str() {
                "" => "`slots` in its place: these nodes have no GPUs".to_owned(),
                _ => format!("one of {there}"),
            };
            let asked = spec.gres.as_ref().map_or_else(String::new, ToString::to_string);
            let found = format!("no node of the partition {where_} has {asked}");
            return Err(wrong("gres", found, allowed));
        }
        let limit = able.iter().map(|row| row.minutes.unwrap_or(u64::MAX)).max().unwrap_or(u64::MAX);
        let asked = spec.time.map_or(0, |time| time.as_secs().div_ceil(60));
        if asked > limit {
            let found = format!("{asked} minutes are more than the partition {where_} gives a job");
            return Err(wrong("time", found, format!("at most {limit}m")));
        }
        let cores = able.iter().map(|row| row.cores).max().unwrap_or(0);
        if spec.cores() > cores {
            let found = format!("no such node of the partition {where_} has {} cores", spec.cores());
            return Err(wrong("cpus", found, format!("at most {cores}")));
        }
        let room: u32 = able.iter().map(|row| row.nodes.saturating_mul(row.room(spec))).sum();
        if spec.nodes.max > room {
            let found = format!(
                "the partition {where_} has room for {} like that, not for {}",
                jobs(room),
                spec.nodes.max
            );
            return Err(wrong("nodes", found, format!("at most {room}")));
        }
        let mut types: Vec<GpuType> = able.iter().flat_map(|row| row.types(spec)).collect();
        types.sort();
        types.dedup();
        let one = (types.len() == 1).then(|| types.swap_remove(0));
        let line = format!(
            "{field}: nodes of {spec}: {} wanted, the partition {where_} has room for {room}, {}",
            spec.nodes,
            if limit == u64::MAX {
                "without a limit of time".to_owned()
            } else {
                format!("for up to {limit} minutes")
            }
        );
        Ok(Checked { gpu_type: spec.gpu_type().or(one), line })
    }

    /// Nodes of the partitions that a kind names, or of the default one; or what is wrong, and what there is.
    fn of(&self, spec: &PilotSpec) -> Result<Vec<&Row>, (String, String)> {
        let mut names: Vec<&str> = self.0.iter().map(|row| row.partition.as_str()).collect();
        names.dedup();
        let there = || format!("one of {}", list(names.iter().map(|name| (*name).to_owned())));
        let Some(partition) = &spec.partition else {
            let rows: Vec<&Row> = self.0.iter().filter(|row| row.is_default).collect();
            let missing = || ("missing, and Slurm has no default partition".to_owned(), there());
            return if rows.is_empty() { Err(missing()) } else { Ok(rows) };
        };
        for name in partition.split(',') {
            if !names.contains(&name) {
                return Err((format!("there is no partition {name}"), there()));
            }
        }
        let is_named = |row: &&Row| partition.split(',').any(|name| name == row.partition);
        Ok(self.0.iter().filter(is_named).collect())
    }
}

impl Row {
    fn has(&self, spec: &PilotSpec) -> bool {
        spec.gres.is_none() || self.types_of(spec).next().is_some()
    }

    /// How many jobs of a kind one of these nodes has room for: each has a part of its GPUs and of its cores.
    fn room(&self, spec: &PilotSpec) -> u32 {
        let by_cores = self.cores / spec.cores().max(1);
        let Some(wanted) = &spec.gres else { return by_cores };
        let by_gpus = |there: &Gres| there.count / wanted.count.max(1);
        self.types_of(spec).map(by_gpus).sum::<u32>().min(by_cores)
    }

    fn types_of<'a>(&'a self, spec: &'a PilotSpec) -> impl Iterator<Item = &'a Gres> {
        let fits = |there: &&Gres| {
            let is_wanted = |wanted: &Gres| {
                there.count >= wanted.count && (wanted.kind.is_none() || wanted.kind == there.kind)
            };
            spec.gres.as_ref().is_some_and(is_wanted)
        };
        self.gpus.iter().filter(fits)
    }

    fn types(&self, spec: &PilotSpec) -> Vec<GpuType> {
        let kinds = self.types_of(spec).filter_map(|gres| GpuType::new(gres.kind.as_deref()?).ok());
        kinds.collect()
    }
}

/// GPUs among resources such as `gpu:a100:8(S:0-1),shard:a100:16`.
fn gpus(text: &str) -> Vec<Gres> {
    let mut depth = 0;
    let is_comma = |c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    };
    let plain = |part: &str| part.split('(').next().unwrap_or_default().parse::<Gres>().ok();
    text.split(is_comma).filter_map(plain).collect()
}

/// Minutes of a limit such as `infinite`, `30:00`, `4:00:00` or `2-00:00:00`; none outside is no limit.
#[expect(clippy::option_option, reason = "no limit is something else than a text that is none")]
fn minutes(text: &str) -> Option<Option<u64>> {
    if matches!(text, "infinite" | "UNLIMITED" | "n/a" | "N/A") {
        return Some(None);
    }
    let (days, clock) = text.split_once('-').unwrap_or(("0", text));
    let parts: Option<Vec<u64>> = clock.split(':').map(|part| part.parse().ok()).collect();
    let parts = parts?;
    let (hours, minutes) = match (parts[..].len(), text.contains('-')) {
        (3, _) | (1 | 2, true) => (parts[0], parts.get(1).copied().unwrap_or(0)),
        (1 | 2, false) => (0, parts[0]),
        _ => return None,
    };
    let days: u64 = days.parse().ok()?;
    Some(Some(days.checked_mul(1440)?.checked_add(hours.checked_mul(60)?)?.checked_add(minutes)?))
}

fn jobs(count: u32) -> String {
    if count == 1 { "1 job".to_owned() } else { format!("{count} jobs") }
}

fn list(names: impl Iterator<Item = String>) -> String {
    let mut names: Vec<String> = names.collect();
    names.sort();
    names.dedup();
    names.join(", ")
}

/// Whether all kinds of pilots of a study can run.
pub fn check(tools: &Tools, specs: &[PilotSpec]) -> Result<Vec<Checked>, Error> {
    let partitions = Partitions::ask(tools)?;
    let check = |(place, spec)| partitions.check(&format!("cluster.slurm[{place}]"), spec);
    specs.iter().enumerate().map(check).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::Machines;

    const SINFO: &str = "gpu*|infinite|2|64|gpu:a100:8(S:0-1),shard:a100:16\ngpu*|infinite|1|64+|gpu:h100:8\n\
                         spot|1:00:00|4|32|gpu:t4:4\ncpu|2-00:00:00|9|16|(null)\n";

    fn checked(spec: &str) -> Result<Checked, String> {
        let machines = Machines::from_yaml("c.yaml", &format!("cluster: {{slurm: {{{spec}}}}}")).unwrap();
        let partitions = Partitions::parse(SINFO).unwrap();
        partitions.check("cluster.slurm[0]", &machines.slurm[0]).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_there_passes_and_the_type_is_found_out() {
        let of = |spec| checked(spec).unwrap().gpu_type.map(|gpu_type| gpu_type.name().to_owned());
        assert_eq!(of("gres: 'gpu:a100:8', nodes: 2, time: 9d").as_deref(), Some("a100"));
        assert_eq!(of("gres: 'gpu:2', partition: spot").as_deref(), Some("t4"));
        assert_eq!(of("gres: 'gpu:8', nodes: 3"), None, "two types come into question");
        assert_eq!(of("slots: 16xcpu, partition: cpu, time: 48h").as_deref(), Some("cpu"));
        assert_eq!(of("gres: 'gpu:t4:4', partition: 'gpu,spot'").as_deref(), Some("t4"));
        // A node with eight GPUs has room for four jobs with two each; one with 64 cores for four with 16.
        assert_eq!(of("gres: 'gpu:a100:2', nodes: 8").as_deref(), Some("a100"));
        assert_eq!(of("gres: 'gpu:a100:1', cpus: 16, nodes: 8").as_deref(), Some("a100"));
        assert!(checked("gres: 'gpu:a100:1', cpus: 16, nodes: 9").is_err());
        assert_eq!(of("slots: 2xcpu, partition: cpu, nodes: 72").as_deref(), Some("cpu"));
        let line = checked("gres: 'gpu:t4:4', partition: spot, nodes: 0..4").unwrap().line;
        let wanted = "cluster.slurm[0]: nodes of gpu:t4:4 (spot): 0..4 wanted, the partition spot has room for 4, for up to 60 minutes";
        assert_eq!(line, wanted);
    }

    #[test]
    fn what_is_not_there_is_named_with_what_there_is() {
        for (spec, message) in [
            (
                "gres: 'gpu:8', partition: nope",
                "partition: there is no partition nope; expected one of cpu, gpu, spot",
            ),
            (
                "gres: 'gpu:v100:1'",
                "gres: no node of the partition gpu has gpu:v100:1; expected one of gpu:a100:8, gpu:h100:8",
            ),
            (
                "gres: 'gpu:t4:8', partition: spot",
                "gres: no node of the partition spot has gpu:t4:8; expected one of gpu:t4:4",
            ),
            (
                "gres: 'gpu:1', partition: cpu",
                "gres: no node of the partition cpu has gpu:1; expected `slots` in its place",
            ),
            (
                "gres: 'gpu:t4:4', partition: spot, time: 4h",
                "time: 240 minutes are more than the partition spot gives a job; expected at most 60m",
            ),
            (
                "gres: 'gpu:t4:4', partition: spot, cpus: 33",
                "cpus: no such node of the partition spot has 33 cores; expected at",
            ),
            (
                "gres: 'gpu:a100:8', nodes: 1..3",
                "nodes: the partition gpu has room for 2 jobs like that, not for 3; expected at most 2",
            ),
        ] {
            let found = checked(spec).unwrap_err();
            assert!(found.starts_with(&format!("cluster.slurm[0].{message}")), "{found}");
        }
        assert!(Partitions::parse("gpu|oops").is_err());
    }

    #[test]
    fn limits_of_time_are_understood() {
        for (text, wanted) in
            [("infinite", None), ("30:00", Some(30)), ("4:00:00", Some(240)), ("1-12:00:00", Some(2160))]
        {
            assert_eq!(minutes(text), Some(wanted), "{text}");
        }
        assert_eq!(minutes("soon"), None);
    }
}
