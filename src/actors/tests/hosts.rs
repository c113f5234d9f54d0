//! Agents by ssh, with an ssh that runs the command here.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::{actors::hosts::Hosts, slurm::AgentPlace, space::Machines};

const TOKEN: &str = "0123456789abcdef";

fn program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

struct Scene {
    folder: PathBuf,
    ssh: PathBuf,
    place: AgentPlace,
    notices: Arc<Mutex<Vec<String>>>,
}

impl Scene {
    /// An `ssh` that writes down its arguments and runs the command here, and an agent that does what the text says.
    fn new(name: &str, agent: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("pollux-tune-hosts-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("logs")).unwrap();
        fs::create_dir_all(folder.join("cluster")).unwrap();
        let (ssh, agent_program) = (folder.join("ssh"), folder.join("it's an agent"));
        program(
            &ssh,
            &format!(
                "#!/bin/sh\necho \"$@\" >> '{0}/arguments'\nfor last; do :; done\nexec sh -c \"$last\"\n",
                folder.display()
            ),
        );
        program(&agent_program, &format!("#!/bin/sh\ncd '{}'\n{agent}\n", folder.display()));
        let join_file = folder.join("cluster/join.json");
        fs::write(&join_file, format!("{{\"token\": \"{TOKEN}\"}}\n")).unwrap();
        let directory = folder.clone();
        let place = AgentPlace { program: agent_program, folder: folder.clone(), join_file, directory };
        Self { folder, ssh, place, notices: Arc::default() }
    }

    fn start(&self) -> Hosts {
        let machines = "cluster: {hosts: [{host: user@gpu1, slots: 2xcpu}]}";
        let hosts = Machines::from_yaml("c.yaml", machines).unwrap().hosts;
        let notices = self.notices.clone();
        let notify: crate::actors::session::Notify =
            Arc::new(move |notice: &str| notices.lock().unwrap().push(notice.to_owned()));
        Hosts::start(&self.ssh, &hosts, &self.place, Some(&notify))
    }

    fn text(&self, file: &str) -> String {
        fs::read_to_string(self.folder.join(file)).unwrap_or_default()
    }

    async fn wait_for(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let waiting = async {
            while !is_so(self) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let patience = Duration::from_secs(60);
        let done = tokio::time::timeout(patience, waiting).await;
        assert!(done.is_ok(), "{what}: {:?} {:?}", self.text("arguments"), self.notices.lock().unwrap());
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[actix::test]
async fn the_token_goes_through_the_input_and_the_agent_ends_with_it() {
    let scene =
        Scene::new("joins", "head -n 1 > joined\necho \"$@\" > words\ncat > /dev/null\necho over > over");
    let hosts = scene.start();
    scene.wait_for("the agent has joined", |scene| scene.text("words").ends_with('\n')).await;
    assert_eq!(scene.text("joined"), format!("{{\"token\": \"{TOKEN}\"}}\n"));
    assert_eq!(scene.text("words"), "agent --join-file - --tethered --name user@gpu1 --slots 2xcpu\n");
    let arguments = scene.text("arguments");
    assert!(arguments.starts_with("-T -o BatchMode=yes "), "{arguments}");
    assert!(!arguments.contains(TOKEN), "{arguments}");
    hosts.end().await;
    assert_eq!(scene.text("over"), "over\n", "its input has ended");
    assert!(scene.notices.lock().unwrap().is_empty());
}

#[actix::test]
async fn one_that_fails_is_started_again_and_one_that_leaves_is_not() {
    let agent = "echo x >> starts\nif [ $(wc -l < starts) -lt 2 ]; then echo no such GPU; exit 3; fi\nexit 0";
    let scene = Scene::new("fails", agent);
    let hosts = scene.start();
    scene.wait_for("it was started twice", |scene| scene.text("starts").lines().count() == 2).await;
    hosts.end().await;
    assert_eq!(scene.text("starts").lines().count(), 2);
    let notices = scene.notices.lock().unwrap().clone();
    assert_eq!(notices.len(), 1, "{notices:?}");
    let wanted = "the agent on user@gpu1 has ended (exit status: 3); it is started again after 1 s, and later if that fails; \
                  it printed\n    no such GPU";
    assert_eq!(notices[0], wanted);
}
