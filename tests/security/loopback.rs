//! A sandbox without network still has a loopback: its session's own, and nobody else's.

use std::net::{TcpListener, TcpStream};

use outpost_testkit::bench::with;
use serde_json::{Value, json};

use crate::as_root_and_user;
use crate::card::MOUNTS;
use crate::support::Ground;

const SECRET: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// Answers every connection on both loopback addresses with the same words, and says when it is ready.
const SERVER: &str = r#"exec perl -MSocket -e '
    $| = 1;
    for my $at ([AF_INET, pack_sockaddr_in(8123, inet_aton("127.0.0.1"))],
                [AF_INET6, pack_sockaddr_in6(8123, Socket::inet_pton(AF_INET6, "::1"))]) {
        socket(my $listener, $at->[0], SOCK_STREAM, 0) or die "socket: $!";
        bind($listener, $at->[1]) or die "bind: $!";
        listen($listener, 5) or die "listen: $!";
        next if fork;
        while (accept(my $client, $listener)) { syswrite $client, "served\n"; close $client }
        exit;
    }
    print "ready\n";
    sleep 600'"#;

/// Prints what a server at an address says, or why there is none.
fn client(port: u16) -> String {
    format!(
        r#"perl -MSocket -e '
        for my $at ([AF_INET, pack_sockaddr_in({port}, inet_aton("127.0.0.1"))],
                    [AF_INET6, pack_sockaddr_in6({port}, Socket::inet_pton(AF_INET6, "::1"))]) {{
            socket(my $link, $at->[0], SOCK_STREAM, 0) or print("socket: $!\n"), next;
            connect($link, $at->[1]) or print("connect: $!\n"), next;
            print scalar <$link>;
        }}'"#
    )
}

as_root_and_user! {
    #[needs(MOUNTS)]
    async fn a_server_is_reached_by_the_next_command_of_its_session(who: Who) {
        let ground = Ground::new(who);
        let (mut one, mut other) = (ground.client().await, ground.client().await);
        one.start(with(ground.shell("server", SERVER), json!({"sandbox": ground.workspace_write()}))).await;
        let ready = one.until(|message| message["method"] == "process/output" && message["params"]["processId"] == "server").await;
        assert!(ready.to_string().contains("cmVhZHkK"), "{ready}");
        let served = (0, "served\nserved\n".to_owned());
        assert_eq!(ground.run(&mut one, &ground.workspace_write(), &client(8123)).await, served);
        // Another policy is another sandbox, with the same network.
        assert_eq!(ground.run(&mut one, &ground.read_only(), &client(8123)).await, served);
        let refused = (0, "connect: Connection refused\nconnect: Connection refused\n".to_owned());
        // Another session has another network, and so has the machine.
        assert_eq!(ground.run(&mut other, &ground.workspace_write(), &client(8123)).await, refused);
        assert!(TcpStream::connect(("127.0.0.1", 8123)).is_err());
    }

    #[needs(MOUNTS)]
    async fn the_machines_loopback_stays_closed(who: Who) {
        let ground = Ground::new(who);
        let mut one = ground.client().await;
        let machine = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = machine.local_addr().unwrap().port();
        let refused = (0, "connect: Connection refused\nconnect: Connection refused\n".to_owned());
        assert_eq!(ground.run(&mut one, &ground.workspace_write(), &client(port)).await, refused);
        let (code, devices) = ground.run(&mut one, &ground.read_only(), "cut -d: -f1 /proc/net/dev | tail -n +3").await;
        assert_eq!((code, devices.trim()), (0, "lo"));
    }

    // A relay is on the loopback of the sandbox, also when a later command was let out of it, and not on the machine's.
    #[needs(MOUNTS)]
    async fn a_relay_beside_commands_is_inside_their_sandbox(who: Who) {
        let ground = Ground::new(who);
        let (mut one, mut other) = (ground.client().await, ground.client().await);
        let owned = |start: Value, sandbox: Value| with(start, json!({"sandbox": sandbox, "adoption": {"secret": SECRET, "epoch": 1}}));
        one.start(owned(ground.shell("server", SERVER), ground.workspace_write())).await;
        one.until(|message| message["method"] == "process/output" && message["params"]["processId"] == "server").await;
        one.start(owned(ground.shell("outside", "sleep 600"), Value::Null)).await;
        let beside = |secret: &str| json!([{"processId": "outside", "secret": secret}, {"processId": "server", "secret": secret}]);
        let relay = |id: &str, secret: &str| {
            let connect = json!({"port": 8123, "beside": beside(secret)});
            with(ground.shell(id, ""), json!({"argv": ["connect"], "pipeStdin": true, "tty": false, "connect": connect}))
        };
        other.start(relay("relay", SECRET)).await;
        other.result("process/closeStdin", json!({"processId": "relay"})).await;
        let (code, output) = other.outcome("relay").await;
        let told = String::from_utf8_lossy(&output).into_owned();
        assert!(code == 0 && told.contains("served\n") && told.contains("end 7\n"), "{code}: {told}");
        let (_, why) = other.error("process/start", relay("guessed", &SECRET.replace('0', "f"))).await;
        assert!(why.contains("none of the processes"), "{why}");
    }
}
