//! The workloads that come with the program: see `data/workloads/README.md`.

use super::Workload;

macro_rules! folder {
    ($folder:literal; $($number:literal)*) => {
        ($folder, &[$(include_str!(concat!("../../data/workloads/", $folder, "/workload-", $number, ".csv"))),*])
    };
}

static FOLDERS: [(&str, &[&str]); 8] = [
    folder!("osdi21/load-0.5"; 1 2 3 4 5 6 7 8),
    folder!("osdi21/load-1.0"; 1 2 3 4 5 6 7 8),
    folder!("osdi21/load-1.5"; 1 2 3 4 5 6 7 8),
    folder!("osdi21/load-2.0"; 1 2 3 4 5 6 7 8),
    folder!("osdi21/realistic"; 1 2 3 4 5 6 7 8),
    folder!("sia/newtrace"; 1 2 3 4 5),
    folder!("sia/philly"; 1 2 3 4 5),
    folder!("sia/saturn"; 1 2 3 4 5),
];

impl Workload {
    /// The workloads of a folder of `data/workloads`, such as `osdi21/load-1.0`; empty if there is none of this name.
    #[must_use]
    pub fn builtin(folder: &str) -> Vec<Self> {
        let texts = FOLDERS.iter().find(|(name, _)| *name == folder).map_or(&[][..], |(_, texts)| texts);
        texts.iter().filter_map(|text| Self::parse(text).ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_that_comes_along_can_be_read() {
        let jobs =
            |folder| Workload::builtin(folder).iter().map(|workload| workload.jobs().len()).sum::<usize>();
        assert_eq!(FOLDERS.map(|(folder, _)| jobs(folder)), [640, 1280, 1920, 2560, 1280, 4800, 800, 800]);
        assert!(Workload::builtin("osdi21/load-9").is_empty());
    }
}
