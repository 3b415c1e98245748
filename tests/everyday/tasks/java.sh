# The JVM.

## javac, jar, java
# needs: javac java jar
### inside
printf 'public class App { public static void main(String[] a) { System.out.println("built"); } }\n' >App.java
javac App.java && jar cfe app.jar App App.class && [ "$(java -jar app.jar)" = built ]

## a server on localhost and its client
# needs: javac java
### inside
cat >App.java <<'J'
import com.sun.net.httpserver.HttpServer; import java.net.*; import java.net.http.*;
public class App { public static void main(String[] a) throws Exception {
  var server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
  server.createContext("/", x -> { x.sendResponseHeaders(200, 6); x.getResponseBody().write("served".getBytes()); x.close(); }); server.start();
  var answer = HttpClient.newHttpClient().send(HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + server.getAddress().getPort() + "/")).build(), HttpResponse.BodyHandlers.ofString());
  server.stop(0); System.exit(answer.body().equals("served") ? 0 : 1);
} }
J
java App.java

## jcmd looks into a running program
# needs: java jcmd javac
### inside
printf 'public class App { public static void main(String[] a) throws Exception { Thread.sleep(60000); } }\n' >App.java && javac App.java && { java App & } && pid=$!
until_ok sh -c "jcmd $pid Thread.print | grep -q 'App.main'"; kill $pid

## a large heap is reserved and little of it used
# needs: java javac
### inside
printf 'public class App { public static void main(String[] a) { System.out.println(Runtime.getRuntime().maxMemory() >> 30); } }\n' >App.java && javac App.java
[ "$(java -Xmx8g App)" -ge 7 ]

## mvn starts, with a repository in the home
# needs: mvn
### inside
printf '<project><modelVersion>4.0.0</modelVersion><groupId>g</groupId><artifactId>a</artifactId><version>1</version><packaging>pom</packaging></project>\n' >pom.xml
mvn -o -q -N validate && mvn -v | grep -q Maven
