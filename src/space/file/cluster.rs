//! `cluster`: a description of machines, the name of a file with one, or where machines come from.

use super::{
    diagnostic::{Diagnostic, DiagnosticKind, Diagnostics},
    machines::{Machines, PilotSpec, SshHost},
    node::{Content, Node, Scalar},
    read::{Reader, Values},
    scalar::bad,
    study::read,
    table::{HOST, MACHINES, PILOTS, STUDY},
};
use crate::alloc::ClusterSpec;

/// What `cluster` can be.
pub(super) enum Cluster {
    Described(ClusterSpec),
    Machines(Machines),
}

const LINE: &str = "a line such as `cluster: 2x8xa100,4x4xt4`";
const MAPPING: &str = "`cluster` as a mapping with `slurm`, `hosts` or `listen`";

impl ClusterSpec {
    /// Reads `cluster` of a cluster file, which may be a study file. Of the rest only keys and types are checked.
    ///
    /// ```
    /// use pollux_tune::alloc::ClusterSpec;
    /// assert_eq!(ClusterSpec::from_yaml("dgx.yaml", "cluster: 2x8xa100")?.node_sets[0].nodes, 2);
    /// assert!(ClusterSpec::from_yaml("dgx.yaml", "space: {}").is_err());
    /// # Ok::<(), pollux_tune::space::Diagnostics>(())
    /// ```
    pub fn from_yaml(file: &str, text: &str) -> Result<Self, Diagnostics> {
        read(file, text, |reader| {
            let node = reader.document(text)?;
            let values = reader.section(&node, STUDY, "");
            match reader.cluster_value(&values, LINE)? {
                Cluster::Described(spec) => Some(spec),
                Cluster::Machines(_) => {
                    reader.wrong(values.place("cluster"), "cluster", bad("a mapping".to_owned(), LINE));
                    None
                }
            }
        })
    }
}

impl Machines {
    /// Reads `cluster` of a cluster file, which may be a study file. Of the rest only keys and types are checked.
    ///
    /// ```
    /// use pollux_tune::space::Machines;
    /// assert_eq!(Machines::from_yaml("lab.yaml", "cluster: {hosts: [gpu1]}")?.hosts.len(), 1);
    /// assert!(Machines::from_yaml("dgx.yaml", "cluster: 2x8xa100").is_err());
    /// # Ok::<(), pollux_tune::space::Diagnostics>(())
    /// ```
    pub fn from_yaml(file: &str, text: &str) -> Result<Self, Diagnostics> {
        read(file, text, |reader| {
            let node = reader.document(text)?;
            let values = reader.section(&node, STUDY, "");
            match reader.cluster_value(&values, MAPPING)? {
                Cluster::Machines(machines) => Some(machines),
                Cluster::Described(spec) => {
                    reader.wrong(values.place("cluster"), "cluster", bad(format!("`{spec}`"), MAPPING));
                    None
                }
            }
        })
    }
}

impl Reader<'_> {
    /// `cluster` of a study file, which may name another file.
    pub(super) fn cluster(
        &mut self,
        values: &Values<'_>,
        open: impl FnOnce(&str) -> Result<String, String>,
    ) -> Option<Cluster> {
        let node = values.raw("cluster").filter(|node| !node.is_null())?;
        let name = match &node.content {
            Content::Scalar(scalar) if ClusterSpec::names_file(&scalar.text) => &scalar.text,
            _ => return self.cluster_node(node),
        };
        let file = |yaml: String| {
            let first = |problems: Diagnostics| {
                problems.list().first().map_or_else(String::new, Diagnostic::to_string)
            };
            read(name, &yaml, |reader| {
                let node = reader.document(&yaml)?;
                let values = reader.section(&node, STUDY, "");
                reader.cluster_value(&values, LINE)
            })
            .map_err(first)
        };
        match open(name).and_then(file) {
            Ok(cluster) => Some(cluster),
            Err(reason) => {
                let allowed =
                    "a file with a line such as `cluster: 2x8xa100`, in the folder of the study file";
                self.wrong(node.place, "cluster", bad(format!("`{name}` ({reason})"), allowed));
                None
            }
        }
    }

    /// `cluster` of a cluster file, which has to be there.
    fn cluster_value(&mut self, values: &Values<'_>, allowed: &str) -> Option<Cluster> {
        let node = values.raw("cluster").filter(|node| !node.is_null());
        if node.is_none() {
            self.wrong(values.place, "cluster", DiagnosticKind::Missing { allowed: allowed.to_owned() });
        }
        self.cluster_node(node?)
    }

    fn cluster_node(&mut self, node: &Node) -> Option<Cluster> {
        match &node.content {
            Content::Map(_) => Some(Cluster::Machines(self.machines(node))),
            Content::Scalar(scalar) => self.described(node, &scalar.text).map(Cluster::Described),
            Content::List(_) => {
                self.wrong(node.place, "cluster", bad(node.shown(), format!("{LINE}, or {MAPPING}")));
                None
            }
        }
    }

    fn described(&mut self, node: &Node, text: &str) -> Option<ClusterSpec> {
        let spec = ClusterSpec::parse(text).ok();
        if spec.is_none() {
            let found = Scalar { text: text.to_owned(), plain: true }.shown();
            let allowed =
                "NODESxGPUSxTYPE with commas between, such as 4x4xt4,1x8xa100, or a .yaml file that says so";
            self.wrong(node.place, "cluster", bad(found, allowed));
        }
        spec
    }

    fn machines(&mut self, node: &Node) -> Machines {
        let clean = self.count();
        let values = self.section(node, MACHINES, "cluster");
        let slurm = values.raw("slurm").map_or_else(Vec::new, |node| {
            self.each(node, "cluster.slurm", "a list of mappings, one for each kind of node", Self::pilots)
        });
        let hosts = values
            .raw("hosts")
            .map_or_else(Vec::new, |node| self.each(node, "cluster.hosts", "a list of hosts", Self::host));
        let listen = values.text("listen").map(str::to_owned);
        if slurm.is_empty() && hosts.is_empty() && listen.is_none() && self.count() == clean {
            self.wrong(node.place, "cluster", bad("no machines".to_owned(), MAPPING));
        }
        Machines { listen, slurm, hosts }
    }

    /// What a list holds; a single mapping or text is a list of one.
    fn each<T>(
        &mut self,
        node: &Node,
        path: &str,
        allowed: &str,
        one: fn(&mut Self, &Node, &str) -> Option<T>,
    ) -> Vec<T> {
        match &node.content {
            Content::List(nodes) => {
                let each = nodes.iter().enumerate();
                each.filter_map(|(place, node)| one(self, node, &format!("{path}[{place}]"))).collect()
            }
            Content::Scalar(_) if node.is_null() => {
                self.wrong(node.place, path, bad(node.shown(), allowed));
                Vec::new()
            }
            Content::Map(_) | Content::Scalar(_) => one(self, node, path).into_iter().collect(),
        }
    }

    fn pilots(&mut self, node: &Node, path: &str) -> Option<PilotSpec> {
        let clean = self.count();
        let values = self.section(node, PILOTS, path);
        let text = |key: &str| values.text(key).map(str::to_owned);
        let gres = values.text("gres").and_then(|text| text.parse().ok());
        let slots = values.text("slots").and_then(|text| text.parse().ok());
        if gres.is_none() && slots.is_none() && self.count() == clean {
            let allowed = "the GPUs of a node, such as gpu:a100:8, or `slots`, such as 4xcpu".to_owned();
            self.wrong(node.place, &format!("{path}.gres"), DiagnosticKind::Missing { allowed });
        }
        if values.duration("time").is_some_and(|time| time.as_secs() < 60) {
            let found = "Slurm counts in minutes".to_owned();
            let mistake = DiagnosticKind::Conflict { found, allowed: "a time of at least 1m" };
            self.wrong(values.place("time"), &format!("{path}.time"), mistake);
        }
        let extra = values.words("extra").unwrap_or_default().to_vec();
        for option in extra.iter().filter(|option| !super::machines::is_option(option)) {
            let found = Scalar { text: option.clone(), plain: true }.shown();
            let allowed = "options of sbatch such as --mem=32G, without blanks and quotes, except for those that have a key \
                           here or that every pilot has";
            self.wrong(values.place("extra"), &format!("{path}.extra"), bad(found, allowed));
        }
        Some(PilotSpec {
            nodes: values.text("nodes")?.parse().ok()?,
            gres,
            slots,
            partition: text("partition"),
            time: values.duration("time"),
            setup: text("setup"),
            account: text("account"),
            qos: text("qos"),
            cpus: values.count("cpus"),
            extra,
        })
    }

    fn host(&mut self, node: &Node, path: &str) -> Option<SshHost> {
        if let Content::Scalar(scalar) = &node.content {
            if super::machines::is_host(&scalar.text) {
                return Some(SshHost { host: scalar.text.clone(), program: None, slots: None });
            }
            let allowed = "a host as ssh takes it, such as gpu1 or user@gpu2, or {host: gpu1, program: PATH}";
            self.wrong(node.place, path, bad(node.shown(), allowed));
            return None;
        }
        let clean = self.count();
        let values = self.section(node, HOST, path);
        let host = values.text("host");
        if host.is_none() && self.count() == clean {
            let allowed = "a host as ssh takes it, such as gpu1 or user@gpu2".to_owned();
            self.wrong(node.place, &format!("{path}.host"), DiagnosticKind::Missing { allowed });
        }
        Some(SshHost {
            host: host?.to_owned(),
            program: values.text("program").map(str::to_owned),
            slots: values.text("slots").and_then(|text| text.parse().ok()),
        })
    }
}
